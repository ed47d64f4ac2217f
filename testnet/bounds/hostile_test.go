package bounds

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/config"
	"github.com/skeinmesh/skein/node/dev"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/quicnet"
	"github.com/skeinmesh/skein/transport/wire"
)

// bombCost is what a node may hold at most, at any moment, because of a peer whose messages are wrong (bytes).
const bombCost = 32 << 20

func TestPeerThatSendsBombsCostsTheNodeLittleAndNobodyElseAnything(t *testing.T) {
	m := start(t, dev.Options{Nodes: 1})
	if _, err := m.at(0).CreateStream(t.Context(), "orders", map[string]any{"partitions": 1}, false); err != nil {
		t.Fatal(err)
	}
	e := enter(t, m)
	m.serves(0)
	e.say(wire.AppendFrame(nil, wire.Header{Type: wire.FrameRequest, Method: wire.MethodMembers}, []byte{0x80})).end()
	rss, goroutines, serving := m.memory(0, "VmRSS"), m.sum("go_goroutines"), m.sum("skein_transport_serving")
	m.forgetPeak(0)

	for _, b := range bombs(m.group(0)) {
		begin := time.Now()
		if how := e.throw(b); how == "" {
			t.Errorf("%s: neither refused nor thrown out within %v", b.name, time.Since(begin))
		}
	}
	m.serves(1)
	e.leave()
	m.eventually("what served the peer has ended", func() bool {
		return m.sum("skein_transport_serving") <= serving && m.sum("go_goroutines") <= goroutines+8
	})
	peak, now := m.memory(0, "VmHWM"), m.memory(0, "VmRSS")
	t.Logf("%s before, %s at most meanwhile (%s more), %s after it", mib(rss), mib(peak), mib(peak-rss), mib(now))
	if peak-rss > bombCost {
		t.Errorf("bombs cost the node %s; at most %s is wanted", mib(peak-rss), mib(bombCost))
	}
}

// bomb is what a peer that holds the secret sends on a stream of its own.
type bomb struct {
	name string
	sent []byte
	// open: the peer leaves the stream as it is, and expects nothing.
	open bool
}

// bombs are all of them, on each kind of stream.
func bombs(group ring.GroupID) (out []bomb) {
	bodies := badBodies()
	for _, name := range slices.Sorted(maps.Keys(bodies)) {
		body := bodies[name]
		for _, method := range requests {
			out = append(out, bomb{name: fmt.Sprintf("%s as request %d", name, method), sent: frame(wire.FrameRequest, method, body)})
		}
		for _, method := range streams {
			first := body
			if len(first) > 64<<10 {
				first = first[:64<<10]
			}
			out = append(out, bomb{name: fmt.Sprintf("%s as the hello of stream %d", name, method), sent: frame(wire.FrameOpen, method, first)})
		}
		read := frame(wire.FrameOpen, wire.MethodSubscribe, encode(map[string]any{"g": group, "f": 0, "c": 1}))
		publish := frame(wire.FrameOpen, wire.MethodPublish, encode(map[string]any{"g": group, "s": [16]byte{1}, "n": true}))
		out = append(out,
			// A newer version may say more than credit: fields that are not known are passed over.
			bomb{name: name + " as credit", sent: append(read, frame(wire.FrameData, 0, body)...), open: strings.Contains(name, "field")},
			bomb{name: name + " as a batch", sent: append(publish, frame(wire.FrameData, 0, append([]byte{1, 0}, body...))...)},
			bomb{name: name + " as a message", sent: frame(wire.FrameMessage, wire.MethodRaft, body), open: true},
			bomb{name: name + " as a hello", sent: frame(wire.FrameHello, 0, body)})
	}
	for _, kind := range []wire.FrameType{wire.FrameMessage, wire.FrameRequest, wire.FrameOpen} {
		long := wire.AppendHeader(nil, wire.Header{Type: kind, Method: wire.MethodRaft, Length: wire.MaxFrame + 1})
		cut := wire.AppendHeader(nil, wire.Header{Type: kind, Method: wire.MethodPublish, Length: wire.MaxFrame})
		out = append(out,
			bomb{name: fmt.Sprintf("a frame of type %d beyond the cap", kind), sent: long},
			bomb{name: fmt.Sprintf("a frame of type %d of 4 GiB", kind), sent: append([]byte{0xff, 0xff, 0xff, 0xff}, long[4:]...)},
			bomb{name: fmt.Sprintf("a header of type %d that is not finished", kind), sent: cut[:7], open: true},
			bomb{name: fmt.Sprintf("a frame of type %d that is not finished", kind), sent: append(cut, 1), open: kind != wire.FrameOpen},
			bomb{name: fmt.Sprintf("type %d of an unknown method", kind), sent: frame(kind, 60000, []byte("x")), open: kind == wire.FrameMessage})
	}
	for _, kind := range []wire.FrameType{0, wire.FramePong, wire.FrameResponse, wire.FrameData, wire.FrameError, 77} {
		out = append(out, bomb{name: fmt.Sprintf("a frame of type %d at the start", kind), sent: frame(kind, wire.MethodPublish, []byte("x"))})
	}
	most := badBodies()["as many values as may be in field p"]
	small := append([]byte{0x81, 0xa1, 'p', 0xdd, 0, 0, 0xa0, 0}, bytes.Repeat([]byte{0x81, 0xa1, 'x', 0}, 0xa000)...) // structs of three values
	creation := encode(map[string]any{"o": 3, "s": 0, "n": "x", "e": append([]byte{1, 1}, most...)})
	record := append([]byte{0x81, 0xa1, 'r'}, badBodies()["as many values as may be in field s"]...)
	out = append(out, bomb{name: "a stream of too many partitions", sent: frame(wire.FrameRequest, wire.MethodCatalog, creation)},
		bomb{name: "a stream of too many small partitions", sent: frame(wire.FrameRequest, wire.MethodCatalog,
			encode(map[string]any{"o": 3, "s": 0, "n": "x", "e": append([]byte{1, 1}, small...)}))},
		bomb{name: "a founding record of too many shards", sent: frame(wire.FrameRequest, wire.MethodMembers, record)})
	return append(out, bomb{name: "no frame", sent: bytes.Repeat([]byte{0xfe}, 4096)})
}

var (
	requests = []wire.Method{wire.MethodBirth, wire.MethodCatalog, wire.MethodPartition, wire.MethodFounding, wire.MethodRemoval, wire.MethodReserve,
		wire.MethodOps, wire.MethodUnfit, wire.MethodImport, wire.MethodMembers}
	streams = []wire.Method{wire.MethodPublish, wire.MethodSubscribe, wire.MethodSnapshot}
)

// badBodies are messages that say more than they hold, or hold more values than any message should.
func badBodies() map[string][]byte {
	const many = wire.MaxElements/8 - 8 // nil counts as eight values: just let in
	nils := bytes.Repeat([]byte{0xc0}, 2_000_000)
	counted := func(code byte, n int) []byte {
		return []byte{code, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
	}
	out := map[string][]byte{
		"array of 2^32":        counted(0xdd, -1),
		"map of 2^32":          counted(0xdf, -1),
		"string of 4 GiB":      counted(0xdb, -1),
		"bytes of 4 GiB":       counted(0xc6, -1),
		"extension of 4 GiB":   append(counted(0xc9, -1), 1),
		"truncated extension":  {0xc8, 0xff, 0xff, 1, 0},
		"3 M nested arrays":    bytes.Repeat([]byte{0x91}, 3_000_000),
		"3 M nested maps":      bytes.Repeat([]byte{0x81, 0x01}, 1_500_000),
		"2 M values":           append(counted(0xdd, 2_000_000), nils...),
		"map of too many keys": append(counted(0xdf, 1_000_000), nils...),
		"nothing":              {},
		"no msgpack":           {0xc1},
		"bytes after the end":  {0x80, 0x80},
	}
	for _, field := range "adegilmnoprstx" { // all fields of all messages that have lists
		body := append([]byte{0x81, 0xa1, byte(field)}, counted(0xdd, many)...)
		out["as many values as may be in field "+string(field)] = append(body, nils[:many]...)
	}
	return out
}

func frame(kind wire.FrameType, method wire.Method, body []byte) []byte {
	return wire.AppendFrame(nil, wire.Header{Type: kind, Method: method}, body)
}

func encode(v any) []byte {
	b, err := wire.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// enemy holds the mesh's secret and breaks its protocol.
type enemy struct {
	t    *testing.T
	m    *mesh
	ep   transport.Endpoint
	id   ring.NodeID
	conn transport.Conn
}

func enter(t *testing.T, m *mesh) *enemy {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.DataDir(), "secret"))
	if err != nil {
		t.Fatal(err)
	}
	secret, err := config.ParseSecret(string(text))
	if err != nil {
		t.Fatal(err)
	}
	e := &enemy{t: t, m: m, id: ring.NewNodeID()}
	creds, err := transport.CredentialsFromSecret(e.id, secret)
	if err != nil {
		t.Fatal(err)
	}
	e.ep, err = quicnet.New("127.0.0.1:0").Listen(transport.ListenOptions{Credentials: creds, HandshakeTimeout: 5 * time.Second,
		IdleTimeout: 30 * time.Second, MaxHandshakes: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.leave)
	e.greet()
	return e
}

func (e *enemy) leave() {
	if err := e.ep.Close(); err != nil {
		e.t.Error(err)
	}
}

// greet connects, as what node a hello may be.
func (e *enemy) greet() {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 10*time.Second)
	defer cancel()
	var err error
	if e.conn, err = e.ep.Dial(ctx, e.m.peerAddress(0)); err != nil {
		e.t.Fatal(err)
	}
	hello := encode(map[string]any{"n": e.id, "h": "enemy", "c": "dev", "v": transport.ProtocolVersion, "w": transport.ProtocolMinVersion, "k": wire.ClassBulk})
	s := e.say(frame(wire.FrameHello, 0, hello))
	if h, _, err := wire.ReadFrame(s.c); err != nil || h.Type != wire.FrameHello {
		e.t.Fatalf("hello refused: %+v %v", h, err)
	}
}

type enemyStream struct{ c transport.Conduit }

func (s enemyStream) end() { s.c.Reset(0) }

// say writes b to a new stream; that it may not get to the end is for the answer to tell.
func (e *enemy) say(b []byte) enemyStream {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 10*time.Second)
	defer cancel()
	c, err := e.conn.OpenStream(ctx)
	for ctx.Err() == nil && (err != nil || e.conn.Context().Err() != nil) { // thrown out for what it sent before
		e.greet()
		c, err = e.conn.OpenStream(ctx)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_, _ = c.Write(b)
	return enemyStream{c}
}

// throw sends a bomb and says how it ended; "" where the node did nothing of what it should.
func (e *enemy) throw(b bomb) (how string) {
	e.t.Helper()
	s := e.say(b.sent)
	if b.open {
		return "left open"
	}
	defer s.end()
	_ = s.c.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		switch h, _, err := wire.ReadFrame(s.c); {
		case err == io.EOF:
			return "ended"
		case err == nil && h.Type == wire.FrameData: // an answer before what is wrong
		case err == nil:
			return "answered"
		case os.IsTimeout(err):
			return ""
		case e.conn.Context().Err() != nil:
			return "thrown out"
		default:
			return "reset"
		}
	}
}

// peerAddress is where a node listens for its peers.
func (m *mesh) peerAddress(node int) string {
	host, port, _ := strings.Cut(m.Address(node), ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		m.t.Fatal(err)
	}
	return host + ":" + strconv.Itoa(n+1)
}

// serves publishes one event and reads all of them.
func (m *mesh) serves(before int) {
	m.t.Helper()
	m.skein(0, []byte("one more\n"), "pub", "orders", "--key", "k", "--quiet")
	if got := bytes.Count(m.skein(0, nil, "sub", "orders", "--from", "earliest", "--until-end"), []byte("one more")); got != before+1 {
		m.t.Errorf("read %d events of %d", got, before+1)
	}
}

// group is the one partition that a node holds.
func (m *mesh) group(node int) (id ring.GroupID) {
	m.t.Helper()
	entries, err := os.ReadDir(filepath.Join(m.NodeDir(node), "partitions"))
	if err != nil || len(entries) != 1 || id.UnmarshalText([]byte(entries[0].Name())) != nil {
		m.t.Fatalf("partitions of %s: %v %v", m.Name(node), entries, err)
	}
	return id
}

// sum adds up a metric of the first node over its labels.
func (m *mesh) sum(name string) (sum float64) {
	m.t.Helper()
	resp, err := http.Get("http://" + m.Address(0) + "/metrics")
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		line := s.Text()
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			m.t.Fatal(err)
		}
		sum += v
	}
	return sum
}

// forgetPeak makes VmHWM begin anew (proc_pid_clear_refs(5)).
func (m *mesh) forgetPeak(node int) {
	m.t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", m.PID(node)), []byte("5"), 0); err != nil {
		m.t.Skip("the peak of a process's memory cannot be reset: ", err)
	}
}

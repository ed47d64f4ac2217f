package gossip

import (
	"bytes"
	"compress/lzw"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// Kinds of the library's messages: its own constants are not exported, and do not change.
const (
	libAlive    = 4
	libPushPull = 6
	libUser     = 8
	libEncrypt  = 10
)

type field struct {
	name  string
	value any
}

// pack encodes a message of the library: its kind, then a map in msgpack.
func pack(kind byte, fields ...field) []byte {
	b := []byte{kind, 0x80 | byte(len(fields))}
	text := func(s []byte) {
		b = append(binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(len(s))), s...)
	}
	for _, f := range fields {
		text([]byte(f.name))
		switch v := f.value.(type) {
		case string:
			text([]byte(v))
		case []byte:
			text(v)
		case int:
			b = binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
		default:
			panic(f)
		}
	}
	return b
}

// bomb is a message of 42 MiB in some 35 KB: the library unpacks 40 MiB at most.
var bomb = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	w := lzw.NewWriter(&b, lzw.LSB, 8)
	zeros := make([]byte, 1<<20)
	zeros[0] = libUser
	for range 42 {
		_, _ = w.Write(zeros)
		zeros[0] = 0
	}
	_ = w.Close()
	return pack(compressed, field{"Algo", 0}, field{"Buf", b.Bytes()})
})

// pair is a mesh of two whose streams may take so long.
func pair(t *testing.T, timeout time.Duration, change func(*Config)) []*node {
	t.Helper()
	nodes := make([]*node, 2)
	for i := range nodes {
		c := fastConfig(strings.Repeat("n", i+1))
		c.Self.Mesh = testMesh
		if i > 0 {
			c.Seeds = []string{nodes[0].Addr()}
		}
		change(&c)
		nodes[i] = start(t, c, func(g *Gossip) { g.tune = func(c *memberlist.Config) { c.TCPTimeout = timeout } })
	}
	formed(t, nodes)
	return nodes
}

// throw sends b as one stream that ends behind it, and returns the answer; the node must end it as well.
func throw(t *testing.T, n *node, b []byte, leaveOpen bool) []byte {
	t.Helper()
	conn, err := net.Dial("tcp", n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(40 * time.Second))
	if _, err := conn.Write(append(label(n.cfg.Self.Cluster), b...)); err != nil {
		t.Fatal(err)
	}
	if !leaveOpen {
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	answer, err := io.ReadAll(conn)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Fatal("the node keeps the stream")
	}
	return answer
}

// throwPacket sends b as one packet.
func throwPacket(t *testing.T, n *node, b []byte) {
	t.Helper()
	conn, err := net.Dial("udp", n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(append(label(n.cfg.Self.Cluster), b...)); err != nil {
		t.Fatal(err)
	}
}

// stillHears shows that two nodes go on talking.
func stillHears(t *testing.T, nodes []*node, cpu float32) {
	t.Helper()
	nodes[1].SetLoad(view.Load{CPUPercent: cpu})
	eventually(t, "the load of the other", func() bool {
		m, _ := nodes[0].View().Member(nodes[1].cfg.Self.ID)
		return m.Load.CPUPercent == cpu
	})
	if members := nodes[0].View().Members(); len(members) != len(nodes) {
		t.Errorf("members %+v", members)
	}
	if alarms := nodes[0].log.count("level=ERROR"); alarms > 0 {
		t.Errorf("%d alarms", alarms)
	}
}

// sealed is how streams look to one who holds the secret: AES-GCM of version 1, over the stream's head and label.
type sealed struct {
	cipher.AEAD
	cluster string
}

func seal(t *testing.T, secret []byte, cluster string) sealed {
	t.Helper()
	block, err := aes.NewCipher(secret)
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	return sealed{gcm, cluster}
}

func (s sealed) encrypt(b []byte) []byte {
	nonce := make([]byte, s.NonceSize())
	head := binary.BigEndian.AppendUint32([]byte{libEncrypt}, uint32(1+len(nonce)+len(b)+s.Overhead()))
	return s.Seal(append(append(bytes.Clone(head), 1), nonce...), nonce, b, append(head, s.cluster...))
}

func (s sealed) decrypt(t *testing.T, b []byte) []byte {
	t.Helper()
	const head = 5
	if len(b) < head+1+s.NonceSize() {
		t.Fatalf("answered %q", b)
	}
	nonce, body := b[head+1:][:s.NonceSize()], b[head+1+s.NonceSize():]
	plain, err := s.Open(nil, nonce, body, append(bytes.Clone(b[:head]), s.cluster...))
	if err != nil {
		t.Fatalf("answered %q: %v", b, err)
	}
	return plain
}

func TestCompressedBombsAreDefused(t *testing.T) {
	nodes := mesh(t, 2, nil)
	bomb := bomb()
	if len(bomb) > 60<<10 {
		t.Fatalf("a bomb of %d bytes does not fit a packet", len(bomb))
	}
	allocated := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) >> 20
	}
	if got := allocated(func() {
		for range 20 {
			throw(t, nodes[0], bomb, false)
		}
	}); got > 32 {
		t.Errorf("bombs as streams took %d MiB", got)
	}
	if got := nodes[0].counter(t, "skein_gossip_invalid_total", "compressed"); got != 20 {
		t.Errorf("%v were counted", got)
	}
	if got := allocated(func() {
		throwPacket(t, nodes[0], bomb)
		throwPacket(t, nodes[0], announcement(libAlive, ring.NewNodeID(), make([]byte, maxMeta+1))) // packets are taken one after the other
		eventually(t, "the packet behind the bomb", func() bool { return nodes[0].counter(t, "skein_gossip_invalid_total", "announcement") > 0 })
	}); got < 40 || got > 512 {
		t.Errorf("a bomb as a packet took %d MiB", got)
	}
	stillHears(t, nodes, 40)
}

func TestCompressedBombOfAMemberIsCutOffAtItsLimit(t *testing.T) {
	secret := bytes.Repeat([]byte{7}, 32)
	nodes := pair(t, 30*time.Second, func(c *Config) { c.Secret = secret }) // for the race detector makes unpacking slow
	member := seal(t, secret, nodes[0].cfg.Self.Cluster)
	if answer := member.decrypt(t, throw(t, nodes[0], member.encrypt(bomb()), false)); !bytes.Contains(answer, []byte("larger than limit")) {
		t.Errorf("answered %q", answer)
	}
	stillHears(t, nodes, 40)
}

// announcement says that there is a node with this metadata.
func announcement(kind byte, id ring.NodeID, meta []byte) []byte {
	name := "Node"
	if kind != libAlive {
		name = "Name"
	}
	return pack(kind, field{"Incarnation", 1}, field{name, id.String()}, field{"Addr", []byte{127, 0, 0, 1}}, field{"Port", 9}, field{"Meta", meta},
		field{"Vsn", []byte{1, 5, 5, 0, 0, 0}})
}

// exchange is a full exchange of nodes, each an announcement, and of a user state that is said to be of length bytes.
func exchange(length int, state []byte, nodes ...[]byte) []byte {
	b := pack(libPushPull, field{"Nodes", len(nodes)}, field{"UserStateLen", length})
	for _, n := range nodes {
		b = append(b, n[1:]...)
	}
	return append(b, state...)
}

func TestOversizedMetadataMakesNoMember(t *testing.T) {
	nodes := mesh(t, 2, nil)
	good := nodes[1].Self()
	for i, size := range []int{maxMeta + 1, 60_000} {
		meta := append(encodeMeta(good), make([]byte, size)...)[:size]
		before := nodes[0].counter(t, "skein_gossip_invalid_total", "announcement")
		throwPacket(t, nodes[0], announcement(libAlive, ring.NewNodeID(), meta))
		eventually(t, "the announcement is refused", func() bool { return nodes[0].counter(t, "skein_gossip_invalid_total", "announcement") > before })
		before = nodes[0].counter(t, "skein_gossip_invalid_total", "announcement")
		throw(t, nodes[0], exchange(0, nil, announcement(libPushPull, ring.NewNodeID(), meta)), false)
		eventually(t, "the exchange is refused", func() bool { return nodes[0].counter(t, "skein_gossip_invalid_total", "announcement") > before })
		stillHears(t, nodes, float32(10+10*i))
	}
	// What fits is heard: it was the metadata that was refused.
	id := ring.NewNodeID()
	throwPacket(t, nodes[0], announcement(libAlive, id, encodeMeta(good)))
	eventually(t, "a whole announcement", func() bool { _, ok := nodes[0].View().Member(id); return ok })
}

func TestTruncatedUserStatesAreLeftOutWhole(t *testing.T) {
	nodes := pair(t, time.Second, func(*Config) {})
	said := func(group ring.GroupID) []byte {
		o := ownerHints{owner: nodes[1].cfg.Self.ID}
		for i := range 20 {
			o.hints = append(o.hints, agedHint{group: group, term: uint64(i)})
		}
		return encodeState(testMesh, []report{someReport()}, []ownerHints{o})
	}
	cut, whole := said(ring.GroupID{7}), said(ring.GroupID{8})
	for _, n := range []int{0, 1, len(cut) / 2, len(cut) - 1} {
		throw(t, nodes[0], exchange(len(cut), cut[:n]), false) // the stream ends in it
		throw(t, nodes[0], exchange(n, cut[:n]), false)        // it ends in itself
	}
	// A state of no bytes is none, and no error.
	eventually(t, "what ends in itself is counted", func() bool { return nodes[0].counter(t, "skein_gossip_invalid_total", "state") == 3 })
	throw(t, nodes[0], exchange(len(cut), cut[:len(cut)/2]), true) // the rest never comes
	for _, length := range []int{-1, 1 << 31, 1<<63 - 1} {
		throw(t, nodes[0], exchange(length, cut), false)
	}
	throw(t, nodes[0], exchange(len(whole), whole), false)
	eventually(t, "a whole state is heard", func() bool { _, ok := nodes[0].View().Owner(ring.GroupID{8}); return ok })
	if h, ok := nodes[0].View().Owner(ring.GroupID{7}); ok {
		t.Errorf("a part of a state was taken: %+v", h)
	}
	stillHears(t, nodes, 50)
}

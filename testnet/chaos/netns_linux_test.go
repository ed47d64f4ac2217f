package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/client"
)

// site is a mesh of nodes that each have a network namespace of their own, joined by a network that the test is on as well: what is cut
// between the nodes does not cut off the clients.
type site struct {
	t     *testing.T
	tag   string // begins the names of all that is made
	net   string // first three bytes of the addresses
	size  int
	nodes []*process

	bin  string
	dirs []string                // of the nodes' data
	args []string                // of every node
	env  func(node int) []string // of one; nil: none
}

// newSite starts three nodes on a bridge, at which links can be cut.
func newSite(t *testing.T) *site {
	t.Helper()
	s := prepareSite(t, 3)
	s.plug(s.bridge)
	s.start()
	return s
}

// prepareSite is a site before its network is there. Everything is taken down when the test ends, whatever it ends with.
func prepareSite(t *testing.T, size int) *site {
	t.Helper()
	bin := skein(t)
	switch {
	case os.Geteuid() != 0:
		t.Skip("network namespaces need root")
	case lacks("ip", "nft") != nil:
		t.Skipf("network namespaces need tools that are not here: %v", lacks("ip", "nft"))
	}
	s := &site{t: t, tag: fmt.Sprintf("sk%04x", rand.IntN(1<<16)), net: fmt.Sprintf("10.%d.%d", 64+rand.IntN(150), rand.IntN(256)), size: size, bin: bin}
	t.Cleanup(s.remove)
	dir := dataDir(t)
	for i := range size {
		s.dirs = append(s.dirs, filepath.Join(dir, fmt.Sprint(i)))
	}
	return s
}

// plug makes the network.
func (s *site) plug(network func() error) {
	s.t.Helper()
	if err := network(); err != nil {
		s.t.Skipf("network namespaces cannot be made here: %v", err)
	}
}

// start starts the nodes, and waits until the mesh is whole.
func (s *site) start() {
	s.t.Helper()
	secret := writeSecret(s.t)
	for i, dir := range s.dirs {
		name := fmt.Sprintf("node-%d", i)
		args := append([]string{"ip", "netns", "exec", s.ns(i), s.bin, "node", "--name", name, "--cluster-id", "site", "--insecure",
			"--data-dir", dir, "--secret-file", secret, "--auto-create-streams",
			"--http-addr", s.addr(i, 8400), "--quic-addr", s.addr(i, 8401), "--gossip-addr", s.addr(i, 8402)}, s.args...)
		role := []string{"--join", s.addr(0, 8402)}
		if i == 0 {
			role = []string{"--found"}
		}
		p := newProcess(s.t, filepath.Dir(dir), name, append(args, role...)...)
		if s.env != nil {
			p.env = s.env(i)
		}
		p.start()
		s.nodes = append(s.nodes, p)
	}
	until(s.t, healWithin, s.whole)
	s.nodes[0].args = append(s.nodes[0].args[:len(s.nodes[0].args)-1], "--join", s.addr(1, 8402)) // from now on it is one of many
}

func lacks(tools ...string) error {
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) ns(i int) string         { return fmt.Sprintf("%s-%d", s.tag, i) }
func (s *site) addr(i, port int) string { return net.JoinHostPort(s.ip(i), fmt.Sprint(port)) }
func (s *site) ip(i int) string         { return fmt.Sprintf("%s.%d", s.net, i+1) }

func (s *site) servers() (addrs []string) {
	for i := range s.size {
		addrs = append(addrs, s.addr(i, 8400))
	}
	return addrs
}

// run runs one command of the system.
func run(command ...string) error {
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func runAll(commands ...string) error {
	for _, c := range commands {
		if err := run(strings.Fields(c)...); err != nil {
			return err
		}
	}
	return nil
}

// bridge makes namespaces, links and the bridge. The bridge has a namespace of its own, where no firewall of the host looks at what
// passes; the host is one more station on it.
func (s *site) bridge() error {
	sw := "ip netns exec " + s.tag + " "
	if err := runAll("ip netns add "+s.tag, sw+"ip link add hub type bridge", sw+"ip link set hub up",
		"ip link add "+s.tag+" type veth peer name host netns "+s.tag, sw+"ip link set host master hub", sw+"ip link set host up",
		"ip addr add "+s.net+".254/24 dev "+s.tag, "ip link set "+s.tag+" up"); err != nil {
		return err
	}
	for i := range s.size {
		down := fmt.Sprintf("down%d", i)
		in := "ip netns exec " + s.ns(i) + " "
		if err := runAll("ip netns add "+s.ns(i), sw+"ip link add "+down+" type veth peer name eth0 netns "+s.ns(i),
			sw+"ip link set "+down+" master hub", sw+"ip link set "+down+" up", in+"ip link set lo up",
			in+"ip addr add "+s.ip(i)+"/24 dev eth0", in+"ip link set eth0 up"); err != nil {
			return err
		}
	}
	return nil
}

// remove takes everything down; what was never made is no error. A link ends with either of its namespaces.
func (s *site) remove() {
	for _, p := range s.nodes {
		p.kill()
	}
	_ = run("ip", "link", "del", s.tag)
	for i := range s.size {
		_ = run("ip", "netns", "del", s.ns(i))
	}
	_ = run("ip", "netns", "del", s.tag)
	for _, list := range [][]string{{"ip", "-o", "link"}, {"ip", "netns", "list"}} {
		if out, err := exec.Command(list[0], list[1:]...).Output(); err == nil && strings.Contains(string(out), s.tag) {
			s.t.Errorf("the test left something behind:\n%s", out)
		}
	}
}

// drop has the bridge lose what matches any of the rules, without an answer to the sender.
func (s *site) drop(rules ...string) {
	s.t.Helper()
	text := "table bridge chaos {\n chain passing {\n type filter hook forward priority 0;\n " + strings.Join(rules, " drop\n ") + " drop\n }\n}\n"
	cmd := exec.Command("ip", "netns", "exec", s.tag, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("nft: %v: %s", err, out)
	}
}

// cutOff separates node i from the other nodes, both ways; clients still reach it.
func (s *site) cutOff(i int) {
	s.t.Helper()
	var rules []string
	for j := range s.size {
		if j != i {
			rules = append(rules, "ip saddr "+s.ip(i)+" ip daddr "+s.ip(j), "ip saddr "+s.ip(j)+" ip daddr "+s.ip(i))
		}
	}
	s.drop(rules...)
}

// silenceGossip drops all gossip of node i, both ways.
func (s *site) silenceGossip(i int) {
	s.t.Helper()
	var rules []string
	for _, at := range []string{"ip saddr ", "ip daddr "} {
		for _, port := range []string{"sport", "dport"} {
			rules = append(rules, at+s.ip(i)+" meta l4proto { tcp, udp } th "+port+" 8402")
		}
	}
	s.drop(rules...)
}

func (s *site) heal() {
	s.t.Helper()
	if err := run("ip", "netns", "exec", s.tag, "nft", "delete", "table", "bridge", "chaos"); err != nil {
		s.t.Fatal(err)
	}
}

// whole: every node is ready and sees all alive.
func (s *site) whole() error {
	for i, addr := range s.servers() {
		if s.nodes[i].ended() {
			s.t.Fatalf("node %d ended:\n%s", i, s.nodes[i].logged())
		}
		if err := ready(addr); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
		if n := s.alive(i); n != s.size {
			return fmt.Errorf("node %d sees %d of %d nodes alive", i, n, s.size)
		}
	}
	return nil
}

// alive is how many members node i holds for alive.
func (s *site) alive(i int) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	c, err := client.New(client.Config{Servers: []string{s.addr(i, 8400)}, GiveUpUnreachable: true})
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	list, err := c.Members(ctx)
	if err != nil {
		return 0
	}
	n := 0
	for _, m := range list {
		if m.State == "alive" {
			n++
		}
	}
	return n
}

// post publishes one event with a deadline, once, and returns how long the answer took.
func (w *world) post(node int, ev event, timeout time.Duration) (time.Duration, error) {
	begin := time.Now()
	pub := ev.publish()
	ctx, cancel := context.WithTimeout(w.t.Context(), timeout+10*time.Second)
	defer cancel()
	q := url.Values{"key": {ev.key}, "timeout_ms": {fmt.Sprint(timeout.Milliseconds())}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.servers[node]+"/v1/streams/"+w.stream+"/events?"+q.Encode(), strings.NewReader(string(pub.Value)))
	if err != nil {
		return 0, err
	}
	for k, v := range map[string]string{"Content-Type": pub.ContentType, "ce-specversion": "1.0", "ce-type": "chaos", "ce-source": pub.Source, "ce-id": pub.ID} {
		req.Header.Set(k, v)
	}
	err = w.exchange(req)
	return time.Since(begin), err
}

// exchange sends a request; an answer that says no is a *statusError.
func (w *world) exchange(req *http.Request) error {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body := make([]byte, 4096)
	n, _ := resp.Body.Read(body) // the beginning is enough
	if resp.StatusCode > 299 {
		if resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") == "" {
			w.t.Errorf("a 503 without Retry-After: %s", body[:n])
		}
		return &statusError{resp.StatusCode, body[:n]}
	}
	return nil
}

func isNoQuorum(err error) bool {
	e, ok := errors.AsType[*statusError](err)
	return ok && e.status == http.StatusServiceUnavailable && e.code() == "no-quorum"
}

// TestCutOffNodeRefusesAndFollowsAfterHealing cuts the link between one node and the other two, both ways.
func TestCutOffNodeRefusesAndFollowsAfterHealing(t *testing.T) {
	sd := seed(t)
	s := newSite(t)
	w := newWorld(t, s.servers(), 4)
	l := w.startLoad(sd, 6, 20*time.Millisecond)
	l.startReaders()
	w.progress(300)
	victim := int(sd % 3)
	until(t, healWithin, func() error { // on a busy host its replicas may be behind
		_, err := w.committed(victim)
		return err
	})
	s.cutOff(victim)
	cut := time.Now()
	t.Logf("node %d is cut off", victim)

	w.refusesPublishes(victim)
	w.progress(100) // through and for the majority
	w.servesCommitted(victim)
	w.doesNotAnswerEnd(victim)
	if long() {
		pause(t.Context(), time.Until(cut.Add(20*time.Second)))
	}
	w.progress(100)

	s.heal()
	healed := time.Now()
	c := w.only(victim)
	defer c.Close()
	if err := w.send(t.Context(), c, []event{{publisher: "healed", key: "healed", seq: 1}}); err != nil {
		t.Errorf("publish through the healed node: %v", err)
	}
	t.Logf("node %d acknowledges %d ms after healing", victim, time.Since(healed).Milliseconds())
	until(t, healWithin, s.whole)
	t.Logf("the mesh is whole %d ms after healing", time.Since(healed).Milliseconds())
	w.progress(100)
	l.stopPublishing()
	l.finishReaders(w.readBack())
	w.verdict()
}

// refusesPublishes: a few seconds after the cut at most, every publish through the node is refused with 503 no-quorum, within its
// deadline, and none of them is ever read (the verdict says so).
func (w *world) refusesPublishes(node int) {
	w.t.Helper()
	const timeout = time.Second
	seq, cut := uint64(0), time.Now()
	try := func(key string) error {
		seq++
		ev := event{publisher: "cut off", key: key, seq: seq}
		w.history.Sent(ev.publisher, ev.key, ev.seq)
		took, err := w.post(node, ev, timeout)
		switch {
		case err == nil: // the place is not looked at here
			w.history.Acked(ev.publisher, ev.key, ev.seq, 0, 0, true)
		case isNoQuorum(err):
			w.history.Refused(ev.publisher, ev.key, ev.seq)
		default:
			w.history.Unknown(ev.publisher, ev.key, ev.seq)
		}
		if late := took - timeout; late > patience(500*time.Millisecond) {
			w.t.Errorf("a publish was answered %v after its deadline: %v", late, err)
		}
		if err == nil {
			return errors.New("a publish is acknowledged")
		}
		return err
	}
	w.mu.Lock()
	keys := make([]string, 0, len(w.keyOf))
	for _, key := range w.keyOf { // one of each partition
		keys = append(keys, key)
	}
	w.mu.Unlock()
	for _, key := range keys {
		until(w.t, patience(10*time.Second), func() error {
			if err := try(key); !isNoQuorum(err) {
				return err
			}
			return nil
		})
	}
	w.t.Logf("each of %d partitions is refused with no-quorum through it %d ms after the cut", len(keys), time.Since(cut).Milliseconds())
	for _, key := range keys {
		if err := try(key); !isNoQuorum(err) {
			w.t.Errorf("a later publish is answered with %v", err)
		}
	}
}

// committed reads the first 200 events through one node.
func (w *world) committed(node int) ([]envelope, error) {
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	events, _, err := w.page(w.t.Context(), hc, node, url.Values{"from": {"earliest"}, "limit": {"200"}})
	if err == nil && len(events) < 200 {
		err = fmt.Errorf("a page of committed events has %d", len(events))
	}
	return events, err
}

// servesCommitted: what was committed is read from the earliest offset on.
func (w *world) servesCommitted(node int) {
	w.t.Helper()
	events, err := w.committed(node)
	if err != nil {
		w.t.Errorf("through the node that is cut off: %v", err)
	}
	for _, ev := range events {
		w.read("committed, through the node that was cut off", ev)
	}
}

// doesNotAnswerEnd: where the end is cannot be known without the others.
func (w *world) doesNotAnswerEnd(node int) {
	w.t.Helper()
	const timeout = 2 * time.Second
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, q := range []url.Values{{"from": {"earliest"}, "until": {"end"}}, {"from": {"latest"}}} {
		q.Set("timeout_ms", fmt.Sprint(timeout.Milliseconds()))
		begin := time.Now()
		events, _, err := w.page(w.t.Context(), hc, node, q)
		if !isNoQuorum(err) {
			w.t.Errorf("%s is answered with %d events, %v", q.Encode(), len(events), err)
		}
		if late := time.Since(begin) - timeout; late > patience(time.Second) {
			w.t.Errorf("%s is answered %v after its deadline", q.Encode(), late)
		}
	}
}

// TestGossipCutHealsUnaided: a node whose gossip alone is dropped is held for dead by the others, and they by it. Publishing and reading
// do not depend on that, and when gossip gets through again all see each other without an operator.
func TestGossipCutHealsUnaided(t *testing.T) {
	sd := seed(t)
	s := newSite(t)
	w := newWorld(t, s.servers(), 4)
	l := w.startLoad(sd, 6, 20*time.Millisecond)
	l.startReaders()
	victim := int(sd % 3)
	lasts := 8 * time.Second
	if long() {
		lasts = 2 * time.Minute // in which both sides have long forgotten each other
	}
	s.silenceGossip(victim)
	cut := time.Now()
	until(t, healWithin, func() error {
		for i := range s.nodes {
			want := 2
			if i == victim {
				want = 1
			}
			if n := s.alive(i); n != want {
				return fmt.Errorf("node %d sees %d nodes alive, and hears %d", i, n, want)
			}
		}
		return nil
	})
	t.Logf("node %d and the others hold each other for dead %d ms after its gossip was cut", victim, time.Since(cut).Milliseconds())
	for i := 0; i < 30 || time.Since(cut) < lasts; i++ { // on a busy host the time may be over by now
		ev := event{publisher: "meanwhile", key: "meanwhile", seq: uint64(i + 1)}
		c := w.only(i % 3)
		if err := w.send(t.Context(), c, []event{ev}); err != nil {
			t.Errorf("publish through node %d: %v", i%3, err)
		}
		c.Close()
		pause(t.Context(), 100*time.Millisecond)
	}
	l.readersProgress(100)
	s.heal()
	healed := time.Now()
	until(t, healWithin, s.whole)
	t.Logf("the mesh is whole %d ms after gossip gets through again", time.Since(healed).Milliseconds())
	w.progress(100)
	l.stopPublishing()
	l.finishReaders(w.readBack())
	w.verdict()
}

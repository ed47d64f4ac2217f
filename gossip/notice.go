package gossip

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// noticePause is how long one line is not repeated for one peer.
const noticePause = 10 * time.Minute

// maxNotices bounds both the queue of lines and the memory of which were written.
const maxNotices = 256

// notice is one line for the operator. It is queued, for the callbacks that find it must not wait for a log to be written.
type notice struct {
	level slog.Level
	msg   string
	// key is what may not be repeated within noticePause; empty: always write.
	key   string
	attrs []slog.Attr
}

// notices is the queue of lines: bounded, dropping and counting when full.
type notices struct {
	metrics *metrics
	ch      chan notice

	mu   sync.Mutex
	last map[string]time.Time
}

func newNotices(m *metrics) *notices {
	return &notices{metrics: m, ch: make(chan notice, maxNotices), last: make(map[string]time.Time)}
}

func (n *notices) put(x notice) {
	if x.key != "" && !n.due(x.key, time.Now()) {
		return
	}
	select {
	case n.ch <- x:
	default:
		n.metrics.dropped.WithLabelValues("notices").Inc()
		n.mu.Lock()
		delete(n.last, x.key) // next time, then
		n.mu.Unlock()
	}
}

// due reports whether a line with this key may be written, and remembers that it was.
func (n *notices) due(key string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at, ok := n.last[key]; ok && now.Sub(at) < noticePause {
		return false
	}
	if len(n.last) >= maxNotices {
		for k, at := range n.last {
			if now.Sub(at) >= noticePause {
				delete(n.last, k)
			}
		}
		if len(n.last) >= maxNotices {
			n.metrics.dropped.WithLabelValues("notices").Inc()
			return false
		}
	}
	n.last[key] = now
	return true
}

// write writes one line.
func (n *notices) write(log *slog.Logger, x notice) {
	log.LogAttrs(context.Background(), x.level, x.msg, x.attrs...)
}

// flush writes what is queued.
func (n *notices) flush(log *slog.Logger) {
	for {
		select {
		case x := <-n.ch:
			n.write(log, x)
		default:
			return
		}
	}
}

// otherCluster returns what the transport calls when a peer names another cluster.
func (n *notices) otherCluster(own string) func(net.Addr, string) {
	return func(remote net.Addr, theirs string) { n.refuseCluster(hostOf(remote.String()), own, theirs) }
}

func (n *notices) refuseCluster(peer, own, theirs string) {
	n.metrics.refused.WithLabelValues("cluster").Inc()
	n.put(notice{
		level: slog.LevelWarn, key: "cluster " + peer + " " + theirs,
		msg: "refused a node of another cluster: cluster_id must be the same on all nodes of a mesh; " +
			"correct it, or take the address out of join",
		attrs: []slog.Attr{slog.String("peer", peer), slog.String("our_cluster_id", own), slog.String("their_cluster_id", theirs)},
	})
}

func (n *notices) refuseMesh(peer, name, own, theirs string) {
	n.metrics.refused.WithLabelValues("mesh").Inc()
	n.put(notice{
		level: slog.LevelWarn, key: "mesh " + peer + " " + theirs,
		msg: "refused a node of another mesh: two meshes with the same cluster_id never merge; " +
			"to let a node change its mesh, start it with an empty data directory",
		attrs: []slog.Attr{slog.String("peer", peer), slog.String("peer_name", name), slog.String("our_mesh", own),
			slog.String("their_mesh", theirs)},
	})
}

func (n *notices) refuseVersion(peer, name string, floor, newest uint16) {
	n.metrics.refused.WithLabelValues("version").Inc()
	n.put(notice{
		level: slog.LevelWarn, key: "version " + peer,
		msg:   "refused a node of an older version: this mesh uses what a newer one brought, and does not go back; upgrade that node",
		attrs: []slog.Attr{slog.String("peer", peer), slog.String("peer_name", name), slog.Any("mesh_version", floor), slog.Any("their_version", newest)},
	})
}

func (n *notices) refuseSecret(peer string) {
	n.metrics.refused.WithLabelValues("secret").Inc()
	n.put(notice{
		level: slog.LevelWarn, key: "secret " + peer,
		msg: "a node at this address uses another secret, or only one side uses one: " +
			"secret must be the same on all nodes (secret_previous while it is being changed), and join must name gossip ports",
		attrs: []slog.Attr{slog.String("peer", peer)},
	})
}

// hostOf is the host of host:port; the port of a connection's far end says nothing.
func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

func (n *notices) conflict(id, known, other string) {
	n.metrics.refused.WithLabelValues("node_id").Inc()
	n.put(notice{
		level: slog.LevelWarn, key: "conflict " + id + " " + other,
		msg: "two addresses announce one node id: a node that moved is taken over once its old address is silent; " +
			"a copied data directory must be emptied on one of both",
		attrs: []slog.Attr{slog.String("node", id), slog.String("known_at", known), slog.String("also_at", other)},
	})
}

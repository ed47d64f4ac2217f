package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/wire"
)

const (
	// confirmWait bounds how long a node waits at its start for another one to confirm that its disk is no older copy. Others remember its
	// starts and refuse it if it is; where none is there, nobody can know better, and a mesh must come up by itself after a power loss.
	confirmWait = 5 * time.Second
	// confirmRest bounds how long it waits for the rest of those that are there, once the first one has confirmed.
	confirmRest = time.Second
	// confirmLook is how often it looks.
	confirmLook = 20 * time.Millisecond
)

// errTwin ends a node whose id another process uses.
var errTwin = errors.New("another process runs with this node's id: its data directory was copied; nothing here was changed: " +
	"stop one of the two, and start a new node with an empty data directory")

// verdict is why this node must not go on as it is.
type verdict struct {
	reason string // why its id is given up; empty: another process has it
	detail string
}

// refused hears, from the transport, why another node does not talk with this one.
func (n *Node) refused(peer ring.NodeID, code, detail string) {
	v := verdict{detail: fmt.Sprintf("node %s: %s", peer, detail)}
	switch code {
	case transport.RefusedRollback:
		v.reason = reasonRolledBack
	case transport.RefusedGivenUp:
		v.reason = reasonRefused
	case transport.RefusedDuplicate:
	default:
		return
	}
	n.judged(v)
}

func (n *Node) judged(v verdict) {
	select {
	case n.verdicts <- v:
	default: // the first one decides
	}
}

// watchIdentity ends the node when another one does not let it be who it is.
func (n *Node) watchIdentity(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case v := <-n.verdicts:
		if v.reason == "" {
			return fmt.Errorf("%w (%s)", errTwin, v.detail)
		}
		return n.giveUp(v.reason, errors.New(v.detail))
	}
}

// giveUp notes durably that this node's id is given up, and returns the error that ends the node.
func (n *Node) giveUp(reason string, cause error) error {
	if err := n.data.giveUp(reason, cause.Error()); err != nil {
		return fmt.Errorf("the node id must be given up, and that cannot be written down: %w", errors.Join(cause, err))
	}
	return fmt.Errorf("%w: its data may lack what it acknowledged; that is set aside, nothing is deleted, and the node comes back as an empty one: %w", ErrGaveUp, cause)
}

// damaged decides about an error of what this node has on disk. Damage where other nodes may have copies is given up; without any, an
// operator decides.
func (n *Node) damaged(reason string, err error) error {
	if wire.KindOf(err) != wire.KindCorrupt {
		return err
	}
	if n.mesh().IsZero() || len(n.starts.others()) == 0 {
		return fmt.Errorf("%w: no other node is known that could have copies, so the node does not set its data aside by itself: "+
			"restore the directory, or set it aside to begin anew", err)
	}
	return n.giveUp(reason, err)
}

// runReplicas runs the replica groups once this node's disk is known to be no older copy of itself, as far as anybody can know.
func (n *Node) runReplicas(ctx context.Context) error {
	n.awaitConfirmation(ctx)
	err := n.host.Run(ctx)
	if err != nil && ctx.Err() == nil {
		err = n.damaged(reasonDamagedJournal, err)
	}
	return err
}

// awaitConfirmation waits until a node that met this one before has let it in again, and so have all others that are there; or for a while.
// A node that never met another one has nobody to ask.
func (n *Node) awaitConfirmation(ctx context.Context) {
	others := n.starts.others()
	if len(others) == 0 {
		return
	}
	t := time.NewTicker(confirmLook)
	defer t.Stop()
	begin := time.Now()
	var first time.Time
	for time.Since(begin) < confirmWait {
		up, missing := 0, 0
		for _, id := range others {
			switch {
			case n.peers.Up(id):
				up++
			case n.gossip.View().Alive(id):
				missing++
			}
		}
		if up > 0 && first.IsZero() {
			first = time.Now()
		}
		if up > 0 && (missing == 0 || time.Since(first) > confirmRest) {
			return
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
	n.log.Info("no node that met this one before is there to tell whether its disk is up to date: it goes on with what it has", "waited", confirmWait)
}

// heedMembers remembers where the members of the mesh gossip, and keeps everybody off the node ids that they say they gave up.
func (n *Node) heedMembers() {
	for _, m := range n.gossip.View().Members() {
		if m.Mesh != n.mesh() || m.Mesh.IsZero() {
			continue
		}
		if m.Present() {
			n.starts.there(m.ID, m.GossipAddr, time.Now())
		}
		for _, id := range m.Former {
			switch {
			case id == n.data.id.NodeID:
				n.judged(verdict{reason: reasonRefused, detail: fmt.Sprintf("node %s says that this node id was given up, or declared lost", m.ID)})
				continue
			case id.IsZero() || !n.starts.giveUp(id):
				continue
			}
			n.log.Info("a node id was given up, or declared lost: its copies are made anew, and nobody is let in under that id any more",
				"peer_name", m.Name, "peer", m.ID, "given_up", id)
			n.peers.GiveUp(id)
		}
	}
}

// registerQuarantine measures what is set aside, and says so once.
func (n *Node) registerQuarantine() error {
	kept, bytes := n.data.kept()
	n.kept = kept
	for _, f := range kept {
		n.log.Warn(f.describe(n.data.path), "bytes_in_quarantine", bytes)
	}
	for _, line := range n.data.recovered() {
		n.log.Warn(line)
	}
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "skein_node_quarantined_bytes",
		Help: "Bytes of earlier node ids that were set aside in the data directory, as of the start."})
	g.Set(float64(bytes))
	return n.registry.Register(g)
}

// gaveUp is what the node tells of its past while the data of that is still there.
func (n *Node) gaveUp() []string {
	var out []string
	for _, f := range n.kept {
		out = append(out, f.describe(n.data.path))
	}
	return append(out, n.data.recovered()...)
}

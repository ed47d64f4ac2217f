package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/transport/wire"
)

// floorPatience bounds how long the first use of a version waits until every node has noted that the mesh does not go back.
const floorPatience = 10 * time.Second

// floorGlance is how often it is looked whether they have.
const floorGlance = 25 * time.Millisecond

// RequireVersion is asked before anything is written that only version v reads. Once the mesh's floor is v, that is certain. Before,
// every member that is known must speak v, the dead ones too, for they come back with what they have; then the floor is raised: here
// at once, on the others by gossip, and the wait is for those that are there. A node that was not known is refused when it comes.
// Errors: KindUnavailable, CodeMeshVersion, naming who is too old. Safe for concurrent use.
func (n *Node) RequireVersion(ctx context.Context, v wire.Version) error {
	if n.data.floor() >= v {
		return nil
	}
	if err := n.allSpeak(v); err != nil {
		return err
	}
	if err := n.raiseFloor(v); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, floorPatience)
	defer cancel()
	t := time.NewTicker(floorGlance)
	defer t.Stop()
	for {
		late := n.below(func(m view.Member) bool { return m.Present() && wire.Version(m.Floor) < v })
		if len(late) == 0 {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeMeshVersion, RetryAfter: time.Second,
				Detail: fmt.Sprintf("%s did not confirm protocol version %d yet; try again", strings.Join(late, ", "), v)}
		}
	}
}

// allSpeak refuses where a member is too old for version v, or is not known well enough to tell.
func (n *Node) allSpeak(v wire.Version) error {
	refuse := func(format string, args ...any) error {
		return wire.Errorf(wire.KindUnavailable, wire.CodeMeshVersion, format, args...)
	}
	if wire.Newest < v {
		return refuse("this node speaks protocol version %d; version %d is needed: upgrade it", wire.Newest, v)
	}
	tooOld := func(m view.Member) bool { return wire.Version(max(m.Protocol, 1)) < v }
	if old := n.below(func(m view.Member) bool { return m.Present() && tooOld(m) }); len(old) > 0 {
		return refuse("protocol version %d is needed on every node of the mesh, and %s speaks an older one: upgrade it first", v, strings.Join(old, ", "))
	}
	if gone := n.below(tooOld); len(gone) > 0 {
		return refuse("protocol version %d is needed on every node of the mesh, and %s spoke an older one when it went: start it upgraded; "+
			"a node that is gone for good counts until it is forgotten, after a day", v, strings.Join(gone, ", "))
	}
	known := n.gossip.View()
	for _, g := range n.host.Groups() {
		for _, m := range g.Status().Members {
			if _, ok := known.Member(m.Node); !ok {
				return refuse("node %s holds replicas and was not heard of since this node started; whether it knows protocol version %d shows when it is back",
					m.Node, v)
			}
		}
	}
	return nil
}

// below names the other members of the mesh of which f is true.
func (n *Node) below(f func(view.Member) bool) []string {
	var names []string
	for _, m := range n.gossip.View().Members() {
		if m.ID != n.data.id.NodeID && m.State != view.StateUnknown && f(m) {
			names = append(names, n.dir.Name(m.ID))
		}
	}
	slices.Sort(names)
	return names
}

// raiseFloor notes on disk that what version v brought is in use, then tells the others and leaves those that do not know it.
func (n *Node) raiseFloor(v wire.Version) error {
	raised, err := n.data.raiseFloor(v)
	if err != nil || !raised {
		return err
	}
	n.log.Info("the mesh uses what a newer version brought: nodes of older versions are refused from now on, and this data directory too "+
		"is for that version", "version", v)
	n.gossip.SetFloor(uint16(v))
	n.peers.SetFloor(v)
	return nil
}

// followFloor raises the floor here when another member of the mesh has.
func (n *Node) followFloor(ctx context.Context) error {
	for {
		changed := n.gossip.Changed()
		floor := wire.Oldest
		for _, m := range n.gossip.View().Members() {
			if !m.Mesh.IsZero() && m.Mesh == n.mesh() {
				floor = max(floor, wire.Version(m.Floor))
			}
		}
		if floor <= wire.Newest { // else those nodes refuse this one, and say so
			if err := n.raiseFloor(floor); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

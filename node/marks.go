package node

import (
	"time"

	"github.com/skeinmesh/skein/gossip/view"
)

// marks are what operators set on this node. They are on its disk, so that a restart changes nothing about them.
type marks struct {
	Cordoned bool      `json:"cordoned,omitempty"`
	Drain    drainMark `json:"drain,omitzero"`
}

// drainMark is a drain that was begun and not cancelled.
type drainMark struct {
	ID       string    `json:"operation"`
	Started  time.Time `json:"started"`
	Replicas int       `json:"replicas_at_start"`
	Ended    time.Time `json:"ended,omitzero"` // the node was empty then
}

func (m marks) draining() bool { return m.Drain.ID != "" }

// flags are what the node announces about itself.
func (m marks) flags(leaving bool) view.Flags {
	var f view.Flags
	if m.Cordoned {
		f |= view.Cordoned
	}
	if m.draining() {
		f |= view.Draining
	}
	if leaving {
		f |= view.Leaving
	}
	return f
}

// marks reads what operators set. Safe for concurrent use.
func (d *dataDir) marks() marks {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id.Marks
}

// setMarks writes what operators set, durably; after an error nothing has changed. Safe for concurrent use.
func (d *dataDir) setMarks(m marks) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	to := d.id
	to.Marks = m
	return d.changeLocked(to)
}

// announceFlags tells the others what this node takes and gives. Safe for concurrent use.
func (n *Node) announceFlags() {
	n.flagsMu.Lock() // what is read last is announced last
	defer n.flagsMu.Unlock()
	n.gossip.SetFlags(n.data.marks().flags(n.leaving.Load()))
}

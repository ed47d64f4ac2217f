// Package place is what one node makes of gossip's view: how members are called and where they listen, who is held for alive, who was last
// heard to own a group, and where groups should live.
//
// It owns the step from a view to a ring and to what each member holds, and what the view does not remember: since when a node is missed,
// who declined a copy, and what was proposed a moment ago. The computation is package ring's. It decides nothing: owners act on its
// proposals (flow/replica), and an owner's hint grants nothing. Pure but for the lock around what it
// remembers; the clock is a parameter, so that a simulation places as a node does. Package node makes one and hands it to flow, flow/replica and the transport.
//
// Order it guarantees: answers follow the newest view at once, and what grows old without news within a second.
package place

// Package node is one node of a mesh: the only place where gossip, transport, flow and the front doors are wired together.
//
// It owns the data directory's identity, the order in which parts start and stop, and the translation between what one part
// offers and another needs (load, the mesh pages; owner hints and placement are node/place's). It decides nothing itself. cmd/skein calls it.
//
// Order it guarantees: nothing is served before the identity is on disk; at the end the front door closes first and the
// journal last.
package node

// Package gossip keeps this node's view of the mesh: who is there, how loaded each is, and who is said to own what.
//
// It owns the memberlist driver: its sockets, failure detection, the refusal of nodes of other meshes, the joining and
// rejoining of seeds, and the exchange of load and owner hints. The picture itself is merged by package view. It does not
// decide anything: a view may be stale or wrong, and nothing here grants ownership.
//
// New binds the sockets and starts nothing; Run does everything and waits for what it started. One goroutine (the loop)
// owns the view and publishes immutable snapshots; memberlist's callbacks copy, enqueue and return. What is dropped because
// a queue is full is counted, and the next full exchange repairs it.
//
// Order: a snapshot holds everything that any earlier snapshot held, in its newest form, apart from what expired or was
// beyond the bounds of view.Limits.
package gossip

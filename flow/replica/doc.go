// Package replica drives replica groups on etcd raft: one goroutine a group owns its RawNode, and a Host owns all groups of a node.
//
// It owns elections, replication, membership steps, births, tombstones, snapshots of groups and the order
// journal-then-answer. It does not know streams: state machines, placement and transport are given to it. The node calls
// it; the state machines of flow/partition and flow/catalog run in it.
//
// Order it guarantees: entries are applied once, in order; an outcome is given after commit and apply; nothing is answered
// to a peer before it is durable here.
//
// Who owns what. A group's goroutine owns its raft core, its state and its proposals; everyone else leaves things in its
// inbox or reads its published Status. The host's goroutines: the clock (in Run), the outbox (frames to peers), the appender
// (writes to the journal, whose caller may have to wait) and the checkpointer (state made durable, journal released). A
// group's short-lived children: one snapshot being fetched or installed, one birth request. Run waits for all of them.
//
// After a crash the journal is the authority on what was promised, and the store may lag behind it: entries are applied
// again, and bulk data that the state counts on is completed. The store is ahead of the journal only when a snapshot was
// installed and the journal's reset was lost; then the reset is repeated.
package replica

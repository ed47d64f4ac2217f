// Package replica drives replica groups on etcd raft: one goroutine a group owns its RawNode, and a Host owns all groups of a node.
//
// It owns elections, replication, membership steps, births, tombstones, snapshots of groups and the order
// journal-then-answer. It does not know streams: state machines, placement and transport are given to it.
// Order it guarantees: entries are applied once, in order; an outcome is given after commit and apply; nothing is answered
// to a peer before it is durable here.
package replica

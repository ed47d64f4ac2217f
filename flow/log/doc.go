// Package log keeps a node's durable bytes: the shared journal, the small-state store, and the segment files of partitions.
//
// It owns formats, recovery and fsync. It does not know raft, streams or sessions: entries, births and values are opaque.
// Order it guarantees: a journal unit is durable before its done is called; a group's entries are dropped only after Release;
// a segment's bytes are never changed below the published end.
package log

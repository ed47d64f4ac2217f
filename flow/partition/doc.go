// Package partition is the replicated state machine of one partition: it turns committed entries into offsets, batches in
// segment files, and answers for publishers.
//
// It owns every decision about an entry, and takes it when the entry is applied: which offsets a batch gets, which of its
// records are duplicates, whether its session is known. Entries alone decide, so that every replica comes to the same
// answer; the owner only stamps a time and proposes. How much memory a node has, restarts and spills never change one.
//
// It does not own raft (flow/replica), files (flow/log), the proposing of entries or the sessions' connections (flow).
//
// Who may call: the replica group calls the state machine's methods from its one goroutine (Sync and a Checkpoint's methods
// from others); the methods for readers are safe for any goroutine. It starts no goroutine of its own.
//
// Order it guarantees: offsets count from 0 without gaps in the order of the entries; what Next returned can be read.
package partition

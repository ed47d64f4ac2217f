// Package log keeps what must survive a crash, in three parts:
//
//   - the journal (Journal, FileJournal): one raft log for all groups of a node. Append-only, preallocated and recycled files,
//     one writer, group commit, one fsync stream.
//   - the store (Store, PebbleStore): small state as ordered keys, in atomic batches without a sync of their own.
//   - segments (Segments): one partition's applied batches, in files named by their first offset.
//
// The order that holds between them: a unit is in the journal, and synced, before its done is called; segments and store are
// written afterwards and synced lazily; Release tells the journal what both have made durable, and only then may it forget.
// So whatever the store or the segments lose in a crash is still in the journal.
//
// Damage is told apart from a torn write. Bytes that were known to be durable and do not check out are an error of
// wire.KindCorrupt which names the file and the position; nothing is cut away or deleted then. Bytes after the last durable
// position that do not check out are a write that never finished, and go.
//
// All but the store goes through a file system of its own (FS), so that tests can take the power away at any moment. A file counts as durable
// once its own sync, and those of the directories that lead to it, have returned.
//
// ReadJournal, InspectJournal, InspectSegments and a read-only store are for people who look at a node that does not run: they judge as the
// openings do, and change nothing.
//
// The package knows nothing of raft's rules, of networks or of streams.
package log

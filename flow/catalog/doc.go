// Package catalog is the replicated state machine of one catalog shard: which streams exist, in which incarnation, with which
// config, and which replica groups their partitions are born from.
//
// It owns stream definitions, lineage, birth records and the tombstones of deleted incarnations. It does not own which shard a
// name belongs to, who may change a stream, retries or forwarding (flow does), nor where replicas live (ring proposes, the groups
// decide). Every change is a compare-and-set carried by one entry; Apply is a pure function of the state and the entry: no clock,
// randomness or I/O beyond the batch it is given.
//
// Order it guarantees: a stream is visible to readers from the entry that created it, its definitions in the order of their
// entries; Version only grows, across incarnations of a name too. Reads (Get, List, Births, Fate) are safe from any goroutine and see
// what this replica has applied: asking for the newest state means asking the shard's owner behind a read barrier.
package catalog

// Package planted names bugs that are put into builds with the tag skeinplanted, so that the simulation can show that its checkers find
// them. It owns the names and which one of them is planted; the bugs themselves are at their hooks in the other packages of flow.
//
// Without the tag Is is the constant false in all but form: the compiler removes the hooks.
package planted

// Bug is the name of one.
type Bug string

// The bugs.
const (
	// SkipFsync tells that a write of the journal is durable when it is only written. A loss of power shows it.
	SkipFsync Bug = "skip-fsync"
	// AckBeforeCommit has an owner apply and acknowledge what only its own log has.
	AckBeforeCommit Bug = "ack-before-commit"
	// DropHardState writes neither term nor vote.
	DropHardState Bug = "drop-hard-state"
	// ReuseReplicaID gives the id of a replica that is gone to the next one.
	ReuseReplicaID Bug = "reuse-replica-id"
	// ForgetDedupe forgets the identities of events with each new owner.
	ForgetDedupe Bug = "forget-dedupe"
	// ReadPastCommit serves readers what only the owner's log has, though it is acknowledged in time.
	ReadPastCommit Bug = "read-past-commit"
	// StaleEnd has any replica say where the end is, by what it has applied.
	StaleEnd Bug = "stale-end"
	// StoreRetryTwice stores a batch of a publish session again when it is repeated.
	StoreRetryTwice Bug = "store-retry-twice"
)

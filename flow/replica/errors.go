package replica

import (
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func notOwner(op string, owner ring.NodeID, term uint64) error {
	return &wire.Error{Kind: wire.KindNotOwner, Op: op, Owner: owner, Term: term}
}

func noQuorum(op, detail string) error {
	return &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeNoQuorum, Op: op, Detail: detail}
}

func noCredit(op string) error {
	return &wire.Error{Kind: wire.KindNoCredit, Code: wire.CodeOverloaded, Op: op,
		Detail: "too many bytes of this group wait to be committed"}
}

func unknownOutcome(op string, term uint64) error {
	return &wire.Error{Kind: wire.KindOutcomeUnknown, Code: wire.CodeOutcomeUnknown, Op: op, Term: term,
		Detail: "ownership was lost, or the replica stopped, while the proposal was in flight"}
}

func closedErr(op string) error {
	return &wire.Error{Kind: wire.KindClosed, Op: op, Detail: "the replica is closed"}
}

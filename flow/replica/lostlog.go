package replica

import (
	"errors"
	"fmt"
	"strings"

	"github.com/skeinmesh/skein/transport/wire"
)

// errLostLog: the owner counts on entries that this replica acknowledged and does not have. Its disk is an older copy of itself, or lost
// what was synced; the node must not go on with it.
// It is no wire.Error of its own: those are alike by their kind, and damage of one partition's files ends that replica alone.
var errLostLog = errors.New("this replica's log lacks entries that it acknowledged")

// lostLog is what the core panics with when it finds that.
type lostLog struct{ text string }

// panicOf is the core's panic. One of its reasons to panic is no bug of ours: it is told a commit index that it had acknowledged and does
// not have (raftLog.commitTo).
func panicOf(format string, v ...any) any {
	text := fmt.Sprintf(format, v...)
	if strings.HasPrefix(format, "tocommit(") {
		return lostLog{text}
	}
	return text
}

// runLoop is loop, with the core's word that the log lost something as an error.
func (g *Group) runLoop() (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case lostLog:
			err = fmt.Errorf("%w: %w", errLostLog, &wire.Error{Kind: wire.KindCorrupt, Op: "follow the owner", Detail: p.text})
		default:
			panic(p)
		}
	}()
	return g.loop()
}

// endsHost reports whether an error of one replica says that nothing on this node's disk can be relied on.
func endsHost(err error) bool { return errors.Is(err, errJournal) || errors.Is(err, errLostLog) }

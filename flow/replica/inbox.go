package replica

import (
	"fmt"
	"sync"

	"github.com/skeinmesh/skein/ring"
)

// input is what reached a group since its goroutine last looked.
type input struct {
	msgs     []envelope
	msgFrom  []ring.NodeID // the node each message came from
	props    []*proposal
	reads    []*readWait
	ctl      []func()
	unsent   []tail // messages that did not leave: nothing that was asked of the group, so no reason to be awake
	appended int    // journal writes completed, oldest first
	tick     bool
	lapsed   bool // beats that the resting group relies on are missing, or there are some that it did not expect
	look     bool // the resting group should look around
}

// inbox is where all other goroutines leave things for a group's goroutine. Bounds: messages by count and bytes (dropped),
// proposals by the group's uncommitted bytes (refused), appends by what the group itself has outstanding, control by its
// few callers. A tick that was not taken yet absorbs the next: a group that stood still does not catch up on time.
type inbox struct {
	mu       sync.Mutex
	in, back input
	msgBytes int
	closed   bool
	err      error // a journal write failed
	wake     chan struct{}
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// put runs fn on the open inbox and wakes the group; false when it is closed.
func (b *inbox) put(fn func(in *input)) bool {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return false
	}
	fn(&b.in)
	b.mu.Unlock()
	b.signal()
	return true
}

// message leaves a raft message; false when it was dropped.
func (b *inbox) message(from ring.NodeID, e envelope, maxCount, maxBytes int) bool {
	ok := true
	open := b.put(func(in *input) {
		if len(in.msgs) >= maxCount || (b.msgBytes > 0 && b.msgBytes+e.bytes > maxBytes) {
			ok = false
			return
		}
		b.msgBytes += e.bytes
		in.msgs = append(in.msgs, e)
		in.msgFrom = append(in.msgFrom, from)
	})
	return open && ok
}

// appendDone notes that the oldest outstanding journal write ended.
func (b *inbox) appendDone(err error) {
	b.mu.Lock()
	b.in.appended++
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("%w: %w", errJournal, err)
	}
	b.mu.Unlock()
	b.signal()
}

// take gives all that came; what it returned before is reused. After an error it gives nothing: that is left to close.
func (b *inbox) take() (*input, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, b.err
	}
	old := &b.back
	clear(old.msgs)
	clear(old.props)
	clear(old.reads)
	clear(old.ctl)
	*old = input{msgs: old.msgs[:0], msgFrom: old.msgFrom[:0], props: old.props[:0], reads: old.reads[:0], ctl: old.ctl[:0], unsent: old.unsent[:0]}
	b.in, b.back = b.back, b.in
	b.msgBytes = 0
	return &b.back, nil
}

// close refuses everything from now on and gives what was left.
func (b *inbox) close() *input {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	left := b.in
	b.in = input{}
	return &left
}

// fail stops the group at the next turn.
func (b *inbox) fail(err error) {
	b.mu.Lock()
	if b.err == nil {
		b.err = err
	}
	b.mu.Unlock()
	b.signal()
}

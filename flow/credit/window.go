package credit

import "github.com/skeinmesh/skein/transport/wire"

// MaxWindow bounds the credit of one flow, in bytes: a peer that grants more is not believed.
const MaxWindow = 1 << 30

// Sender is the sending end of a flow: it may send what was granted. One goroutine uses it. The zero Sender has no credit.
type Sender struct{ available int64 }

// Available is how many bytes may be sent.
func (s *Sender) Available() int64 { return s.available }

// Grant adds what the receiver granted. Errors: KindInvalid when the peer grants less than nothing, or beyond MaxWindow; the
// credit is then as before.
func (s *Sender) Grant(n int64) error {
	if n < 0 || n > MaxWindow-s.available {
		return wire.Errorf(wire.KindInvalid, "", "%d bytes of credit granted on top of %d", n, s.available)
	}
	s.available += n
	return nil
}

// Spend takes n bytes from the credit if there are so many.
func (s *Sender) Spend(n int64) bool {
	if n < 0 || n > s.available {
		return false
	}
	s.available -= n
	return true
}

// Receiver is the receiving end of a flow: what it granted and what it holds are together at most its window. One goroutine
// uses it.
type Receiver struct {
	window  int64
	granted int64 // and not yet received
	held    int64 // received and not yet consumed
}

// NewReceiver makes a receiver that holds up to window bytes, within [1, MaxWindow].
func NewReceiver(window int64) *Receiver {
	return &Receiver{window: min(max(window, 1), MaxWindow)}
}

// Held is what was received and not consumed, in bytes.
func (r *Receiver) Held() int64 { return r.held }

// Granted is what the sender may still send, in bytes.
func (r *Receiver) Granted() int64 { return r.granted }

// Receive takes note of n bytes that came. Errors: KindInvalid when the peer sent more than it was granted.
func (r *Receiver) Receive(n int64) error {
	if n < 0 || n > r.granted {
		return wire.Errorf(wire.KindInvalid, "", "%d bytes came with %d bytes of credit", n, r.granted)
	}
	r.granted -= n
	r.held += n
	return nil
}

// Consume takes note of n held bytes being let go of; more than are held is a bug of the caller's, and panics.
func (r *Receiver) Consume(n int64) {
	if n < 0 || n > r.held {
		panic("credit: more bytes consumed than held")
	}
	r.held -= n
}

// Next is the credit to grant now, and counts as granted. It is 0 until half the window is free, so that credit does not
// travel in crumbs.
func (r *Receiver) Next() int64 {
	free := r.window - r.granted - r.held
	if free < (r.window+1)/2 {
		return 0
	}
	r.granted += free
	return free
}

// Resize changes the window. What is granted stays granted: a smaller window takes effect as the flow goes on.
func (r *Receiver) Resize(window int64) { r.window = min(max(window, 1), MaxWindow) }

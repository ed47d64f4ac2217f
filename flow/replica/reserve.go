package replica

import (
	"context"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// reserveOp is what a MethodReserve request asks. The numbers travel between nodes: append only.
type reserveOp uint8

const (
	reserveIn      reserveOp = 1 // may the group's replica come to this node?
	reserveOut     reserveOp = 2 // may it go from this node?
	reserveDone    reserveOp = 3 // the move is over, one way or the other
	reserveCarryOn reserveOp = 4 // this node is about to own the group: it goes on with the move
)

// reservation is the body of a MethodReserve request.
type reservation struct {
	Op     reserveOp
	Group  ring.GroupID
	Swap   Swap
	Manual bool
}

const reservationVersion = 1

func encodeReservation(r reservation) []byte {
	out := append(make([]byte, 0, 64), reservationVersion, byte(r.Op))
	out = append(out, r.Group[:]...)
	out = append(out, r.Swap.From[:]...)
	out = append(out, r.Swap.To[:]...)
	return append(out, boolByte(r.Manual))
}

func decodeReservation(raw []byte) (reservation, error) {
	d := decoder{b: raw}
	if d.byte() != reservationVersion {
		return reservation{}, errMalformed
	}
	r := reservation{Op: reserveOp(d.byte()), Group: d.group()}
	r.Swap.From, r.Swap.To = d.node(), d.node()
	r.Manual = d.byte() == 1
	return r, d.done()
}

// HandleReserve answers a MethodReserve request of a group's owner. KindNoCredit with the reason: not now.
func (h *Host) HandleReserve(_ context.Context, from ring.NodeID, body []byte) ([]byte, error) {
	r, err := decodeReservation(body)
	if err != nil || r.Group.IsZero() || r.Swap.From.IsZero() || r.Swap.To.IsZero() {
		return nil, wire.Errorf(wire.KindInvalid, "", "malformed reservation")
	}
	_, here := h.Group(r.Group)
	now := time.Now()
	switch r.Op {
	case reserveIn, reserveOut:
		return nil, h.grantMove(now, from, r, here)
	case reserveDone:
		h.movesMu.Lock()
		defer h.movesMu.Unlock()
		h.grants.release(now, r.Group, from, here)
		return nil, nil
	case reserveCarryOn:
		if !here {
			return nil, wire.Errorf(wire.KindNotFound, "", "no replica of the group is here")
		}
		h.movesMu.Lock()
		defer h.movesMu.Unlock()
		h.dropOldCarries(now)
		if len(h.carries) >= maxCarries {
			return nil, noCredit("carry on a move")
		}
		h.carries[r.Group] = carry{swap: r.Swap, manual: r.Manual, until: now.Add(grantTime)}
		return nil, nil
	}
	return nil, wire.Errorf(wire.KindInvalid, "", "unknown kind of reservation %d", r.Op)
}

func (h *Host) grantMove(now time.Time, by ring.NodeID, r reservation, here bool) error {
	d, at := moveIn, r.Swap.To
	if r.Op == reserveOut {
		d, at = moveOut, r.Swap.From
	}
	if at != h.cfg.Self {
		return wire.Errorf(wire.KindInvalid, "", "the reservation is for another node")
	}
	if d == moveIn && !here && !h.cfg.Placement.Takes(h.cfg.Self) {
		return takesNothing(wire.KindUnavailable, "reserve")
	}
	have := held{replicas: len(h.Groups()), this: here}
	have.low, have.high = h.cfg.Placement.Share()
	h.movesMu.Lock()
	defer h.movesMu.Unlock()
	if why := h.grants.ask(now, d, r.Group, by, r.Manual, have); why != "" {
		return &wire.Error{Kind: wire.KindNoCredit, Code: wire.CodeOverloaded, Op: "reserve", Detail: why}
	}
	return nil
}

// takesNothing is what a node answers that is asked for something new while it drains, is cordoned or stops. KindNotFound, which none of an
// older version answers, says besides that what it was asked for was never born there, or is there no more.
func takesNothing(kind wire.Kind, op string) error {
	return &wire.Error{Kind: kind, Code: wire.CodeDraining, Op: op, Detail: "it takes nothing new: it is draining, cordoned or stopping"}
}

// declined reports whether that is what a node answered, and has Placement choose others.
func (h *Host) declined(n ring.NodeID, err error) bool {
	if wire.CodeOf(err) != wire.CodeDraining {
		return false
	}
	h.cfg.Placement.Declined(n)
	return true
}

// carry is a move that a group's owner-to-be was asked to go on with.
type carry struct {
	swap   Swap
	manual bool
	until  time.Time
}

// maxCarries bounds them: they come with hand-overs, and are dropped after grantTime.
const maxCarries = 1024

func (h *Host) dropOldCarries(now time.Time) {
	for id, c := range h.carries {
		if !now.Before(c.until) {
			delete(h.carries, id)
		}
	}
}

// takeCarry gives the move that a new owner is to go on with, once.
func (h *Host) takeCarry(now time.Time, g ring.GroupID) (carry, bool) {
	h.movesMu.Lock()
	defer h.movesMu.Unlock()
	h.dropOldCarries(now)
	c, ok := h.carries[g]
	delete(h.carries, g)
	return c, ok
}

// askPause is the least time between two questions of this node for a balance move to one other, so that a thousand owners do not all
// ask at once.
const askPause = 200 * time.Millisecond

// mayAsk reports whether a node may be asked now, and notes that it is.
func (h *Host) mayAsk(now time.Time, n ring.NodeID) bool {
	h.movesMu.Lock()
	defer h.movesMu.Unlock()
	if now.Sub(h.asked[n]) < askPause {
		return false
	}
	if len(h.asked) >= maxCarries {
		clear(h.asked)
	}
	h.asked[n] = now
	return true
}

// mayEven reports whether a hand-over that evens out ownership may be started now.
func (h *Host) mayEven(now time.Time) bool {
	h.movesMu.Lock()
	defer h.movesMu.Unlock()
	return h.handed.may(now)
}

// noteHanded corrects what gossip will tell of a node later.
func (h *Host) noteHanded(now time.Time, to ring.NodeID, even bool) {
	h.movesMu.Lock()
	defer h.movesMu.Unlock()
	h.handed.note(now, to, even)
}

// ownedBy is what a node owns and should own: of this one exactly, of others as gossip has it and with what was handed to them since.
func (h *Host) ownedBy(now time.Time, n ring.NodeID) (count, mean, high int) {
	count, mean, high = h.cfg.Placement.Owned(n)
	if n == h.cfg.Self {
		return int(h.owns.Load()), mean, high
	}
	h.movesMu.Lock()
	defer h.movesMu.Unlock()
	return count + h.handed.count(now, n), mean, high
}

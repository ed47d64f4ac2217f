package replica

import (
	"slices"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// StepKind is one kind of membership change.
type StepKind uint8

const (
	StepNone       StepKind = iota
	StepAddLearner          // Node gets a new, empty replica
	StepPromote             // IDs become voters, all at once
	StepTransfer            // ownership goes to IDs[0]
	StepSwap                // IDs become voters, Demote learners and Remove goes, in one joint change
	StepRemove              // Remove goes: learners that are not wanted any more
)

func (k StepKind) String() string {
	return [...]string{"none", "add-learner", "promote", "transfer", "swap", "remove"}[k]
}

// Step is what an owner should do next to its group, and why. Of StepNone the reason says what it waits for, and Node whom for; without
// one the group is as wanted.
type Step struct {
	Kind   StepKind
	Node   ring.NodeID
	IDs    []ring.ReplicaID
	Demote []ring.ReplicaID
	Remove []ring.ReplicaID
	Even   bool // a hand-over that evens out what nodes own
	Reason string
}

// attrs is the step for a log, without what it does not have.
func (s Step) attrs() []any {
	out := []any{"step", s.Kind.String()}
	if !s.Node.IsZero() {
		out = append(out, "to", s.Node.String())
	}
	for _, l := range []struct {
		key string
		ids []ring.ReplicaID
	}{{"ids", s.IDs}, {"demote", s.Demote}, {"remove", s.Remove}} {
		if len(l.ids) > 0 {
			out = append(out, l.key, l.ids)
		}
	}
	return append(out, "reason", s.Reason)
}

// Content is true where nothing is to be done and nothing is waited for.
func (s Step) Content() bool { return s.Kind == StepNone && s.Reason == "" }

// Swap is a replica's way from one node to another.
type Swap struct {
	From, To ring.NodeID
}

// PlanMember is one member as the owner sees it.
type PlanMember struct {
	Member
	Match       uint64
	Active      bool // answered within the last election timeout
	Replicating bool // takes entries from the log: no snapshot is due or under way
	Alive       bool // by gossip
	Leaving     bool // its node hands away what it owns
	Refused     bool // did not take the ownership over when it was offered a short while ago
	Dead        bool // its node is there and has it no more
	Closed      bool // its node is there, and has said for long enough that it is closed for good
	// Owned, Mean and High are what Placement.Owned says of its node.
	Owned, Mean, High int
}

// PlanInput is all that Plan looks at.
type PlanInput struct {
	Self    ring.ReplicaID
	Members []PlanMember
	Joint   bool // a change is half done
	Pending bool // a change or hand-over was started and its result is not seen yet
	Commit  uint64
	// Desired nodes, the home first, with what gossip thinks of each.
	Desired      []ring.NodeID
	DesiredAlive []bool
	// Want is how many copies the group wants.
	Want int
	// Move is a swap that both ends agreed to; nil: none.
	Move *Swap
	// LastStep is when the last step was started; no other is within Pause of it.
	LastStep time.Time
	Pause    time.Duration
	// PreferHome and HomeAfter: hand over to the home once it was HomeFit without a break since HomeSince. EvenOut allows that a node
	// which owns too much hands over.
	PreferHome bool
	HomeAfter  time.Duration
	HomeSince  time.Time // zero: not fit
	EvenOut    bool
}

// CaughtUp is how far behind the commit index a learner may be when it is promoted: what is in flight under load.
const CaughtUp = 512

// Fit says whether a member could take over at once.
func (m PlanMember) Fit(commit uint64) bool {
	return m.Active && m.Alive && m.Replicating && m.Match+CaughtUp >= commit
}

// drains is true of a member whose node is there and to be emptied.
func (m PlanMember) drains() bool { return m.Alive && m.Leaving }

// TargetVoters is how many voters a group of so many copies has: an odd number, so two copies are one voter and one learner.
func TargetVoters(copies int) int {
	if copies%2 == 0 {
		copies--
	}
	return max(copies, 1)
}

// Plan says the one next step towards the wanted membership, or StepNone. Pure.
//
// It adds before it removes. Voters change in one joint change, to an odd number, and only to a set of which a majority is fit, while no
// fewer copies than before (or than wanted) remain. The owner is never removed: where its node is to go it hands over first. An even
// number is passed through only where the one node that holds the only voter hands over to the only one that is left, and where a copy that
// is closed for good can be replaced on its own node only (renewClosed).
func Plan(now time.Time, in PlanInput) Step {
	switch {
	case in.Joint, in.Pending:
		return Step{Reason: "a change is under way"}
	case now.Before(in.LastStep.Add(in.Pause)):
		return Step{Reason: "a pause between two steps"}
	}
	p := newPicture(in)
	if s, ok := p.handOver(); ok {
		return s
	}
	if p.self.Leaving && !p.going() {
		return p.rest() // it stops: the next owner sees to the members
	}
	for _, rule := range []func() (Step, bool){p.changeVoters, p.dropLearner, p.addLearner, p.renewClosed} {
		if s, ok := rule(); ok {
			return s
		}
	}
	if s, ok := planOwner(now, in); ok {
		return s
	}
	return p.rest()
}

// picture is the input with what follows from it at once.
type picture struct {
	PlanInput
	self   PlanMember
	voters int
	// wanted nodes, the home first: Desired with the move.
	wanted []ring.NodeID
	// fit members on wanted nodes: the copies that there are if all others go.
	fitWanted int
	fitVoters int
	short     bool // there are fewer nodes than copies wanted
}

func newPicture(in PlanInput) *picture {
	in.Desired = in.Desired[:min(len(in.Desired), max(in.Want, 1))]
	p := &picture{PlanInput: in, wanted: in.wanted(), short: len(in.Desired) < in.Want}
	if in.Move != nil && slices.Contains(p.wanted, in.Move.From) {
		p.Move = nil // void: nothing comes in the place of the copy there
	}
	for _, m := range in.Members {
		if m.ID == in.Self {
			p.self = m
		}
		if !m.Learner {
			p.voters++
		}
		if p.fit(m) && p.wants(m) {
			p.fitWanted++
		}
		if p.fit(m) && !m.Learner {
			p.fitVoters++
		}
	}
	return p
}

// wanted is Desired, with the move's target in the place of its source. A move is void once its source is gone, or either end is as it
// should be anyway.
func (in PlanInput) wanted() []ring.NodeID {
	if in.Move == nil || !holds(in.Members, in.Move.From) || slices.Contains(in.Desired, in.Move.To) {
		return in.Desired
	}
	i := slices.Index(in.Desired, in.Move.From)
	if i < 0 {
		return in.Desired
	}
	return append(slices.Delete(slices.Clone(in.Desired), i, i+1), in.Move.To)
}

// moves is true of the source of a move: what replaces the copy there is on its way.
func (in PlanInput) moves(n ring.NodeID) bool { return in.Move != nil && in.Move.From == n }

func (p *picture) fit(m PlanMember) bool   { return m.ID == p.Self || m.Fit(p.Commit) }
func (p *picture) wants(m PlanMember) bool { return slices.Contains(p.wanted, m.Node) }

// copies is how many the group shall have.
func (p *picture) copies() int { return max(len(p.wanted), 1) }

// going is true of an owner whose node is to hold the group no longer.
func (p *picture) going() bool { return len(p.wanted) > 0 && !p.wants(p.self) }

// handOver gives the ownership away where this node goes or stops.
func (p *picture) handOver() (Step, bool) {
	if !p.going() && !p.self.Leaving {
		return Step{}, false
	}
	if to, ok := p.successor(); ok {
		return Step{Kind: StepTransfer, IDs: []ring.ReplicaID{to.ID}, Node: to.Node, Reason: "this node hands away what it owns"}, true
	}
	return Step{}, false
}

// successor is who should own the group if not this replica: a fit voter that stays, in the order of Desired, one that owns less than
// it may before one that does not.
func (p *picture) successor() (best PlanMember, ok bool) {
	rank := func(m PlanMember) (r int) {
		if m.Refused {
			r += 4
		}
		if m.Owned >= m.High {
			r += 2
		}
		if !p.wants(m) {
			r++ // it will have to hand over again
		}
		return r
	}
	place := func(m PlanMember) int {
		if i := slices.Index(p.wanted, m.Node); i >= 0 {
			return i
		}
		return len(p.wanted)
	}
	for _, m := range p.Members {
		if m.ID == p.Self || m.Learner || m.Leaving || !p.fit(m) || (p.going() && !p.wants(m)) {
			continue
		}
		if !ok || rank(m) < rank(best) || (rank(m) == rank(best) && place(m) < place(best)) {
			best, ok = m, true
		}
	}
	return best, ok
}

// changeVoters promotes, demotes and removes voters in one change.
func (p *picture) changeVoters() (Step, bool) {
	size := p.size()
	pool := p.pool()
	n := min(size, len(pool))
	if n < size {
		if n%2 == 0 {
			n--
		}
		if n < p.voters {
			return Step{}, false // what is to come in is not there yet
		}
	}
	chosen := pool[:n]
	s := Step{Kind: StepPromote, Reason: "learners have caught up and the group wants more voters"}
	fits := 0
	for _, m := range chosen {
		if p.fit(m) {
			fits++
		}
		if m.Learner {
			s.IDs = append(s.IDs, m.ID)
		}
	}
	drained, doubtful := 0, 0 // of the voters that would go
	for _, m := range p.Members {
		if m.Learner || slices.ContainsFunc(chosen, func(c PlanMember) bool { return c.ID == m.ID }) {
			continue
		}
		if p.wants(m) {
			s.Demote = append(s.Demote, m.ID)
			continue
		}
		s.Remove = append(s.Remove, m.ID)
		switch {
		case m.drains():
			drained++
		case m.Alive:
			doubtful++
		}
	}
	if len(s.Demote)+len(s.Remove) > 0 {
		s.Kind, s.Reason = StepSwap, "voters that are not wanted any more go"
		if len(s.IDs) > 0 {
			s.Reason = "learners that have caught up take the places of voters that go"
		}
		if p.fitWanted < min(p.copies(), p.fitVoters) {
			return Step{}, false // fewer copies than now
		}
		if p.short && (doubtful > 0 || (drained == 0 && n < 3 && p.voters%2 == 1)) {
			// Nothing can come in its place. One that is gone stays where an answer would need one disk less; one that is there and does not
			// drain stays anyway: the view may be that of a node which has not heard of all others yet. Two voters, left by a way out that was
			// given up half-way, need every disk as it is.
			return Step{}, false
		}
	}
	if len(s.IDs)+len(s.Demote)+len(s.Remove) == 0 || fits <= n/2 {
		return Step{}, false
	}
	return s, true
}

// size is how many voters the group shall have. An owner whose node goes keeps its place until another one can take over.
func (p *picture) size() int {
	size := TargetVoters(p.copies())
	if size == 1 && p.going() {
		size = 1 + min(2, p.copies())
	}
	return size
}

// pool lists who may be a voter, the best first: the owner, then the other voters that stay, those that are fit before those that are
// not, then learners that have caught up, and voters that are closed for good last. A voter that is away for a while is not replaced while
// its node is wanted.
func (p *picture) pool() []PlanMember {
	out := []PlanMember{p.self}
	add := func(ok func(m PlanMember) bool) {
		for _, node := range p.wanted {
			for _, m := range p.Members {
				if m.Node == node && m.ID != p.Self && ok(m) {
					out = append(out, m)
				}
			}
		}
	}
	add(func(m PlanMember) bool { return !m.Learner && p.fit(m) })
	add(func(m PlanMember) bool { return !m.Learner && !p.fit(m) && !m.Closed })
	add(func(m PlanMember) bool { return m.Learner && p.fit(m) })
	add(func(m PlanMember) bool { return !m.Learner && !p.fit(m) && m.Closed })
	return out
}

// dropLearner removes learners that are not wanted once the wanted copies are there, and at once those that have nothing or are closed for
// good, but for the source of a move. One on a dead node that no other can replace stays: it may come back with what it has.
func (p *picture) dropLearner() (Step, bool) {
	s := Step{Kind: StepRemove, Reason: "learners that are not wanted any more go"}
	for _, m := range p.Members {
		useless := m.Dead || (m.Closed && !p.moves(m.Node))
		if !m.Learner || m.ID == p.Self || (!useless && (p.wants(m) || (p.short && !m.drains()))) {
			continue
		}
		if useless || p.fitWanted >= p.copies() || m.Match == 0 {
			s.Remove = append(s.Remove, m.ID)
		}
	}
	return s, len(s.Remove) > 0
}

// renewClosed removes a voter that is closed for good and whose node is to hold a copy nevertheless, for no other can: a new replica comes
// there once the old one is gone, for a node has one of a group. A majority of an odd number of voters is one of the even number below it
// too, so those that work are needed as much as before, and no more. The next one waits for what comes in the place of the first.
func (p *picture) renewClosed() (Step, bool) {
	if p.fitVoters <= (p.voters-1)/2 || (p.voters%2 == 0 && p.coming()) {
		return Step{}, false
	}
	for _, m := range p.Members {
		if m.Closed && !m.Learner && m.ID != p.Self && p.wants(m) {
			return Step{Kind: StepRemove, Node: m.Node, Remove: []ring.ReplicaID{m.ID},
				Reason: "the copy there is closed for good, and no other node takes one: a new one comes in its place"}, true
		}
	}
	return Step{}, false
}

// coming is true while a wanted copy is still on its way, or about to be.
func (p *picture) coming() bool {
	return slices.ContainsFunc(p.wanted, func(n ring.NodeID) bool { return !holds(p.Members, n) }) ||
		slices.ContainsFunc(p.Members, func(m PlanMember) bool { return m.Learner && p.wants(m) && !p.fit(m) })
}

func (p *picture) addLearner() (Step, bool) {
	for _, node := range p.wanted {
		if !holds(p.Members, node) && p.alive(node) {
			return Step{Kind: StepAddLearner, Node: node, Reason: "the group wants a copy there"}, true
		}
	}
	return Step{}, false
}

func (p *picture) alive(n ring.NodeID) bool {
	i := slices.Index(p.Desired, n)
	return i < 0 || p.DesiredAlive[i] // a move's target is alive, or the move is given up
}

// rest says what is waited for.
func (p *picture) rest() Step {
	for _, node := range p.wanted {
		if !holds(p.Members, node) {
			return Step{Node: node, Reason: "the node that should hold a copy is away"}
		}
	}
	for _, m := range p.Members {
		if p.wants(m) && !p.fit(m) {
			switch {
			case m.Closed:
				return Step{Node: m.Node, Reason: "the copy there is closed for good, and others are needed before it can be replaced"}
			case m.Alive && m.Learner:
				return Step{Node: m.Node, Reason: "the learner there is catching up"}
			}
			return Step{Node: m.Node, Reason: "the copy there is behind, or its node is away"}
		}
	}
	for _, m := range p.Members {
		switch {
		case p.wants(m):
		case m.Alive && m.ID == p.Self:
			return Step{Node: m.Node, Reason: "no other copy can take the ownership over yet"}
		case m.Alive:
			return Step{Node: m.Node, Reason: "the copy there cannot go: too few others would be left"}
		default:
			return Step{Node: m.Node, Reason: "no node can replace the copy of the node that is gone"}
		}
	}
	if p.self.Leaving {
		return Step{Node: p.self.Node, Reason: "no other copy can take the ownership over"}
	}
	return Step{}
}

func holds(ms []PlanMember, n ring.NodeID) bool {
	return slices.ContainsFunc(ms, func(m PlanMember) bool { return m.Node == n })
}

// Home is the voter on the first desired node, if there is one other than self, fit to take over and with room for one more.
func (in PlanInput) Home() (ring.ReplicaID, bool) {
	if len(in.Desired) == 0 {
		return 0, false
	}
	for _, m := range in.Members {
		if m.Node == in.Desired[0] && !m.Learner && m.ID != in.Self && m.Fit(in.Commit) && !m.Leaving && m.Owned < m.High {
			return m.ID, true
		}
	}
	return 0, false
}

// planOwner hands over to the home, or away from a node that owns too much. The two do not undo each other: the home takes only up to
// the bound from which on a node hands over, and who is handed a group for balance comes to the mean at most.
func planOwner(now time.Time, in PlanInput) (Step, bool) {
	if !in.PreferHome || in.Move != nil {
		return Step{}, false
	}
	if to, ok := in.lighter(); ok && in.EvenOut {
		return Step{Kind: StepTransfer, IDs: []ring.ReplicaID{to.ID}, Node: to.Node, Even: true, Reason: "this node owns more than its share, and that one less"}, true
	}
	home, ok := in.Home()
	if !ok || in.HomeSince.IsZero() || now.Sub(in.HomeSince) < in.HomeAfter {
		return Step{}, false
	}
	return Step{Kind: StepTransfer, IDs: []ring.ReplicaID{home}, Node: in.Desired[0], Reason: "the group's home has been fit for long enough"}, true
}

// lighter is the fit voter whose node owns the least, if this node owns more than it should and that one less than the mean.
func (in PlanInput) lighter() (best PlanMember, ok bool) {
	i := slices.IndexFunc(in.Members, func(m PlanMember) bool { return m.ID == in.Self })
	if i < 0 || in.Members[i].Owned <= in.Members[i].High {
		return best, false
	}
	for _, m := range in.Members {
		if m.ID == in.Self || m.Learner || m.Leaving || m.Refused || !m.Fit(in.Commit) || m.Owned >= m.Mean || m.Owned+1 >= in.Members[i].Owned {
			continue
		}
		if !ok || m.Owned < best.Owned {
			best, ok = m, true
		}
	}
	return best, ok
}

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
)

func (k StepKind) String() string {
	return [...]string{"none", "add-learner", "promote", "transfer"}[k]
}

// Step is what an owner should do next to its group, and why.
type Step struct {
	Kind   StepKind
	Node   ring.NodeID
	IDs    []ring.ReplicaID
	Reason string
}

// PlanMember is one member as the owner sees it.
type PlanMember struct {
	Member
	Match       uint64
	Active      bool // answered within the last election timeout
	Replicating bool // takes entries from the log: no snapshot is due or under way
	Alive       bool // by gossip
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
	// LastStep is when the last step was started; no other is within Pause of it.
	LastStep time.Time
	Pause    time.Duration
	// PreferHome and HomeAfter: hand over to the home once it was HomeFit without a break since HomeSince.
	PreferHome bool
	HomeAfter  time.Duration
	HomeSince  time.Time // zero: not fit
}

// caughtUp is how far behind the commit index a learner may be when it is promoted: what is in flight under load.
const caughtUp = 512

// Fit says whether a member could take over at once.
func (m PlanMember) Fit(commit uint64) bool {
	return m.Active && m.Alive && m.Replicating && m.Match+caughtUp >= commit
}

// TargetVoters is how many voters a group of so many copies has: an odd number, so two copies are one voter and one learner.
func TargetVoters(copies int) int {
	if copies%2 == 0 {
		copies--
	}
	return max(copies, 1)
}

// Plan says the one next step towards the wanted membership, or StepNone. Pure. It adds before it promotes, promotes
// an even number at once so that the count of voters stays odd, and never removes.
func Plan(now time.Time, in PlanInput) Step {
	if in.Joint || in.Pending || now.Before(in.LastStep.Add(in.Pause)) {
		return Step{}
	}
	copies := max(min(len(in.Desired), in.Want), 1)
	var voters int
	var ready []ring.ReplicaID
	for _, m := range in.Members {
		switch {
		case !m.Learner:
			voters++
		case m.Fit(in.Commit) && slices.Contains(in.Desired, m.Node):
			ready = append(ready, m.ID)
		}
	}
	if grow := TargetVoters(copies) - voters; grow > 0 {
		n := min(grow, len(ready))
		if (voters+n)%2 == 0 {
			n--
		}
		if n > 0 {
			return Step{Kind: StepPromote, IDs: ready[:n], Reason: "learners have caught up and the group wants more voters"}
		}
	}
	if len(in.Members) < copies {
		for i, node := range in.Desired {
			if !holds(in.Members, node) && in.DesiredAlive[i] {
				return Step{Kind: StepAddLearner, Node: node, Reason: "the group wants more copies"}
			}
		}
	}
	return planHome(now, in)
}

func holds(ms []PlanMember, n ring.NodeID) bool {
	return slices.ContainsFunc(ms, func(m PlanMember) bool { return m.Node == n })
}

// Home is the voter on the first desired node, if there is one other than self and it is fit to take over.
func (in PlanInput) Home() (ring.ReplicaID, bool) {
	if len(in.Desired) == 0 {
		return 0, false
	}
	for _, m := range in.Members {
		if m.Node == in.Desired[0] && !m.Learner && m.ID != in.Self && m.Fit(in.Commit) {
			return m.ID, true
		}
	}
	return 0, false
}

func planHome(now time.Time, in PlanInput) Step {
	home, ok := in.Home()
	if !ok || !in.PreferHome || in.HomeSince.IsZero() || now.Sub(in.HomeSince) < in.HomeAfter {
		return Step{}
	}
	return Step{Kind: StepTransfer, IDs: []ring.ReplicaID{home}, Reason: "the group's home has been fit for long enough"}
}

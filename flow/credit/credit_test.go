package credit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/skeinmesh/skein/transport/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBudgetIsNeverPassedAndEverythingComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := NewBudget(rapid.Int64Range(1, 100).Draw(t, "limit"))
		budgets := []*Budget{node, node.Child(node.Limit() / 2), node.Child(200)}
		held := make([][]int64, len(budgets))
		total := func(i int) (sum int64) {
			for _, n := range held[i] {
				sum += n
			}
			return sum
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				i := rapid.IntRange(0, len(budgets)-1).Draw(t, "budget")
				n := rapid.Int64Range(1, 60).Draw(t, "n")
				fits := n <= budgets[i].Limit()-budgets[i].Used() && n <= node.Limit()-node.Used()
				if got := budgets[i].TryReserve(n); got != fits {
					t.Fatalf("TryReserve(%d) = %v", n, got)
				} else if got {
					held[i] = append(held[i], n)
				}
			},
			"release": func(t *rapid.T) {
				i := rapid.IntRange(0, len(budgets)-1).Draw(t, "budget")
				if k := len(held[i]); k > 0 {
					budgets[i].Release(held[i][k-1])
					held[i] = held[i][:k-1]
				}
			},
			"": func(t *rapid.T) {
				if node.Used() != total(0)+total(1)+total(2) || node.Used() > node.Limit() {
					t.Fatalf("node: %d used of %d", node.Used(), node.Limit())
				}
				for i, b := range budgets[1:] {
					if b.Used() != total(i+1) || b.Used() > b.Limit() {
						t.Fatalf("child: %d used of %d, %d held", b.Used(), b.Limit(), total(i+1))
					}
				}
			},
		})
	})
}

func TestLargeReservationIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(10)
		if !b.TryReserve(6) {
			t.Fatal("an empty budget refuses")
		}
		var order []string
		wait := func(name string, n int64) {
			go func() {
				if err := b.Reserve(t.Context(), n); err != nil {
					t.Error(err)
				}
				order = append(order, name)
			}()
			synctest.Wait()
		}
		wait("large", 10)
		wait("small", 1)
		if b.TryReserve(1) || b.Waiting() != 2 {
			t.Fatal("a small reservation overtakes a large one")
		}
		b.Release(6)
		synctest.Wait()
		b.Release(10)
		synctest.Wait()
		if len(order) != 2 || order[0] != "large" {
			t.Fatalf("served %v", order)
		}
		b.Release(1)
		if b.Used() != 0 {
			t.Fatalf("%d bytes lost", b.Used())
		}
	})
}

func TestReservationThatGivesUpLetsThoseBehindPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(10)
		b.TryReserve(6)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var large, small error = nil, errors.New("still waiting")
		go func() { large = b.Reserve(ctx, 10) }()
		synctest.Wait()
		go func() { small = b.Reserve(t.Context(), 4) }()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		e, ok := errors.AsType[*wire.Error](large)
		if !ok || e.Kind != wire.KindNoCredit || e.Code != wire.CodeOverloaded || e.RetryAfter != RetryAfter ||
			!errors.Is(large, context.DeadlineExceeded) {
			t.Errorf("at the deadline: %v", large)
		}
		if small != nil || b.Used() != 10 || b.Waiting() != 0 {
			t.Errorf("behind it: %v, %d used, %d wait", small, b.Used(), b.Waiting())
		}
	})
}

func TestChildThatWaitsForItsParentGivesUpBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := NewBudget(10)
		child := node.Child(5)
		node.TryReserve(8)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := child.Reserve(ctx, 5); wire.KindOf(err) != wire.KindNoCredit {
			t.Errorf("got %v", err)
		}
		if child.Used() != 0 || node.Used() != 8 {
			t.Errorf("child %d, node %d", child.Used(), node.Used())
		}
	})
}

func TestManyWaitersLoseNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(1, 8), 1, 30).Draw(rt, "sizes")
		waits := rapid.SliceOfN(rapid.IntRange(1, 50), len(sizes), len(sizes)).Draw(rt, "waits")
		synctest.Test(t, func(t *testing.T) {
			b := NewBudget(8)
			for i, n := range sizes {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(waits[i])*time.Millisecond)
					defer cancel()
					if b.Reserve(ctx, n) == nil {
						time.Sleep(time.Duration(waits[len(waits)-1-i]) * time.Millisecond)
						if b.Used() > b.Limit() {
							t.Errorf("%d used of %d", b.Used(), b.Limit())
						}
						b.Release(n)
					}
				}()
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if b.Used() != 0 || b.Waiting() != 0 {
				t.Errorf("%d bytes and %d waiters left", b.Used(), b.Waiting())
			}
		})
	})
}

func TestReservationLargerThanTheBudgetIsRefusedAtOnce(t *testing.T) {
	if err := NewBudget(5).Reserve(t.Context(), 6); wire.CodeOf(err) != wire.CodeTooLarge {
		t.Errorf("got %v", err)
	}
	if err := NewBudget(0).Reserve(t.Context(), 0); err != nil {
		t.Errorf("nothing: %v", err)
	}
}

func TestReleaseOfTooMuchPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	NewBudget(5).Release(1)
}

func TestFlowNeverHoldsMoreThanItsWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.Int64Range(1, 1000).Draw(t, "window")
		var s Sender
		r := NewReceiver(window)
		var flying []int64 // grants on their way
		t.Repeat(map[string]func(*rapid.T){
			"grant": func(t *rapid.T) {
				if n := r.Next(); n > 0 {
					flying = append(flying, n)
				}
			},
			"arrive": func(t *rapid.T) {
				if len(flying) > 0 {
					if err := s.Grant(flying[0]); err != nil {
						t.Fatal(err)
					}
					flying = flying[1:]
				}
			},
			"send": func(t *rapid.T) {
				n := rapid.Int64Range(0, 1200).Draw(t, "n")
				if could := n <= s.Available(); s.Spend(n) != could {
					t.Fatalf("Spend(%d) does not do what Available says", n)
				} else if could {
					if err := r.Receive(n); err != nil {
						t.Fatal(err)
					}
				}
			},
			"consume": func(t *rapid.T) {
				r.Consume(rapid.Int64Range(0, r.Held()).Draw(t, "n"))
			},
			"": func(t *rapid.T) {
				sum := s.Available()
				for _, n := range flying {
					sum += n
				}
				if sum != r.Granted() || r.Granted()+r.Held() > window {
					t.Fatalf("%d with the sender, %d granted, %d held of %d", sum, r.Granted(), r.Held(), window)
				}
			},
		})
		r.Consume(r.Held())
		if s.Available() == 0 && len(flying) == 0 && r.Next() == 0 {
			t.Fatal("the flow is stuck")
		}
	})
}

func TestPeerThatCheatsIsRefused(t *testing.T) {
	var s Sender
	for _, n := range []int64{-1, MaxWindow + 1} {
		if err := s.Grant(n); wire.KindOf(err) != wire.KindInvalid {
			t.Errorf("grant of %d: %v", n, err)
		}
	}
	r := NewReceiver(10)
	n := r.Next()
	if err := r.Receive(n + 1); wire.KindOf(err) != wire.KindInvalid {
		t.Errorf("overdrawn: %v", err)
	}
}

package credit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waiting is the number of reservations that wait.
func (b *Budget) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queue.Len()
}

func TestBudgetIsNeverPassedAndEverythingComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBudget(rapid.Int64Range(1, 100).Draw(t, "limit"))
		var held []int64
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				n := rapid.Int64Range(1, 60).Draw(t, "n")
				fits := n <= b.Limit()-b.Used()
				if got := b.TryReserve(n); got != fits {
					t.Fatalf("TryReserve(%d) = %v", n, got)
				} else if got {
					held = append(held, n)
				}
			},
			"release": func(t *rapid.T) {
				if k := len(held); k > 0 {
					b.Release(held[k-1])
					held = held[:k-1]
				}
			},
			"": func(t *rapid.T) {
				total := int64(0)
				for _, n := range held {
					total += n
				}
				if b.Used() != total || b.Used() > b.Limit() {
					t.Fatalf("%d used of %d, %d held", b.Used(), b.Limit(), total)
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
		if b.TryReserve(1) || b.waiting() != 2 {
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
		virtual.Sleep(2 * time.Second)
		synctest.Wait()
		e, ok := errors.AsType[*wire.Error](large)
		if !ok || e.Kind != wire.KindNoCredit || e.Code != wire.CodeOverloaded || e.RetryAfter != RetryAfter ||
			!errors.Is(large, context.DeadlineExceeded) {
			t.Errorf("at the deadline: %v", large)
		}
		if small != nil || b.Used() != 10 || b.waiting() != 0 {
			t.Errorf("behind it: %v, %d used, %d wait", small, b.Used(), b.waiting())
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
						virtual.Sleep(time.Duration(waits[len(waits)-1-i]) * time.Millisecond)
						if b.Used() > b.Limit() {
							t.Errorf("%d used of %d", b.Used(), b.Limit())
						}
						b.Release(n)
					}
				}()
			}
			virtual.Sleep(time.Minute)
			synctest.Wait()
			if b.Used() != 0 || b.waiting() != 0 {
				t.Errorf("%d bytes and %d waiters left", b.Used(), b.waiting())
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

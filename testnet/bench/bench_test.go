package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestPayloadsHaveTheirSizeAndBodiesCarryThemAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{128, 1024} {
		for _, asJSON := range []bool{true, false} {
			p := newPayloads(size, asJSON, rng)
			if len(p.values) != bodiesPerLoad*window || len(p.bodies) != bodiesPerLoad {
				t.Fatalf("%d values in %d bodies", len(p.values), len(p.bodies))
			}
			for _, v := range p.values {
				if len(v) != size || json.Valid(v) != asJSON {
					t.Fatalf("a value of %d bytes, JSON %v: %q", len(v), json.Valid(v), v)
				}
			}
			lines := bytes.Split(bytes.TrimSuffix(p.bodies[1], []byte("\n")), []byte("\n"))
			if len(lines) != window {
				t.Fatalf("%d lines", len(lines))
			}
			var got []byte
			if asJSON {
				got = lines[3]
			} else {
				var envelope struct {
					Value []byte `json:"value_base64"`
				}
				if err := json.Unmarshal(lines[3], &envelope); err != nil {
					t.Fatal(err)
				}
				got = envelope.Value
			}
			if !bytes.Equal(got, p.values[window+3]) {
				t.Fatal("the body carries another value")
			}
		}
	}
}

func TestRatiosAreTakenWithinPairs(t *testing.T) {
	r := newReport()
	m := metric{"x", "ms", true, true}
	for pair, v := range [][2]float64{{1, 10}, {30, 10}, {4, 20}} {
		r.add(m, skeinName, pair, v[0])
		r.add(m, natsAlways, pair, v[1])
	}
	r.fail(m, natsDefault, 0, errors.New("broken"))
	r.add(m, natsDefault, 1, 10)
	r.Pairs = 3
	r.Finish()
	w := r.Rows[0]
	if w.Median[skeinName] != 4 || w.Median[natsAlways] != 10 || w.Ratio[natsAlways] != 0.2 || w.Ratio[natsDefault] != 3 {
		t.Fatalf("medians %v, ratios %v", w.Median, w.Ratio)
	}
	var out strings.Builder
	if err := r.Table(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"*0.20", "3.00", "  1.00..30.0       10.0..20.0\n", "failed: x: pair 1, nats-default: broken"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Fatal(err)
	}
}

func TestRunThatHasNoTimeForAllPairsSaysSoAndFails(t *testing.T) {
	for _, tc := range []struct {
		asked, ran int
		limit      time.Duration
	}{{3, 3, time.Hour}, {3, 3, 3 * time.Minute}, {3, 2, 3*time.Minute - 1}, {20, 1, time.Second}} {
		var spent time.Duration
		ran := 0
		r := &runner{o: Options{Pairs: tc.asked, Limit: tc.limit}, rep: newReport()}
		err := r.all(func(int) error { ran++; spent += time.Minute; return nil }, func() time.Duration { return spent })
		var out strings.Builder
		if err := r.rep.Table(&out); err != nil {
			t.Fatal(err)
		}
		if ran != tc.ran || r.rep.Pairs != ran {
			t.Errorf("%d of %d pairs ran, want %d; the report says %d", ran, tc.asked, tc.ran, r.rep.Pairs)
		}
		last := fmt.Sprintf("INCOMPLETE: ONLY %d OF %d PAIRS RAN\n", tc.ran, tc.asked)
		if few := tc.ran < tc.asked; few != errors.Is(err, ErrTooFewPairs) || few != strings.HasSuffix(out.String(), last) || !few && err != nil {
			t.Errorf("%d of %d pairs ran: error %v, and at the end of\n%s", tc.ran, tc.asked, err, &out)
		}
	}
	broken := errors.New("broken")
	r := &runner{o: Options{Pairs: 2, Limit: time.Hour}, rep: newReport()}
	if err := r.all(func(pair int) error { return broken }, func() time.Duration { return 0 }); err != broken || r.rep.Pairs != 0 || r.rep.Asked != 2 {
		t.Errorf("%v, %+v", err, r.rep)
	}
}

func TestPercentilesAreByNearestRank(t *testing.T) {
	v := []float64{5, 1, 4, 2, 3}
	for p, want := range map[int]float64{50: 3, 99: 5, 100: 5, 20: 1, 21: 2} {
		if got := percentile(v, p); got != want {
			t.Errorf("p%d is %v, want %v", p, got, want)
		}
	}
	if percentile(nil, 50) != 0 || median([]float64{4, 2}) != 3 {
		t.Error("of nothing, or of two")
	}
}

package flow

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skeinmesh/skein/transport/wire"
)

func TestOnlyTheAPIsCodesBecomeLabels(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	for _, err := range []error{
		wire.Errorf(wire.KindUnavailable, wire.CodeNoQuorum, "none"), wire.Errorf(wire.KindInvalid, "made up by a peer", ""), errors.New("plain"),
	} {
		m.refusal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "skein_publish_refused_total" {
			for _, c := range f.GetMetric() {
				got[c.GetLabel()[0].GetValue()] = c.GetCounter().GetValue()
			}
		}
	}
	if len(got) != 2 || got[wire.CodeNoQuorum] != 1 || got["other"] != 2 {
		t.Errorf("counted %v", got)
	}
}

func TestBytesOfEventsAreCountedWithoutWhatTheBudgetAdds(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	m.published(&request{results: make([]PublishResult, 2)}, 10+2*eventOverhead, 0)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "skein_publish_bytes_total" && f.GetMetric()[0].GetCounter().GetValue() != 10 {
			t.Errorf("counted %v bytes, want 10", f.GetMetric()[0].GetCounter().GetValue())
		}
	}
}

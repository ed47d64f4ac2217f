package flow

import (
	"fmt"
	"testing"
	"time"
)

// The new owner knows the definition from before the change, because it published then: it must not act on it.
func TestNewOwnerDoesNotBringAnOldConfigBack(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		cfg := StreamConfig{Partitions: 1, RetentionMS: (2 * time.Minute).Milliseconds()}
		info := m.create("orders", cfg)
		for i := range 3 {
			m.put(i, "orders", "k", fmt.Sprint(i))
		}
		old := m.owner(info.Partitions[0].Group)
		cfg.RetentionMS = (30 * 24 * time.Hour).Milliseconds()
		if _, err := old.broker.Update(m.within(5*time.Second), "orders", 0, cfg); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		lg, _ := old.host.Group(info.Partitions[0].Group)
		if err := lg.Transfer(m.within(5*time.Second), m.nodes[(old.i+1)%3].id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if got := m.readAll(old.i, "orders", earliest()); len(got) != 3 {
			t.Errorf("%d events are left of 3 that are to be kept for a month", len(got))
		}
	})
}

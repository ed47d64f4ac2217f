package containers

import (
	"strings"
	"testing"

	"github.com/skeinmesh/skein/node/client"
)

// TestSpreadNamesWhatLiesTogether: copies belong into as many zones as there are, and those on nodes that are not there count nowhere.
func TestSpreadNamesWhatLiesTogether(t *testing.T) {
	zoneOf := map[string]string{"n1": "a", "n2": "b", "n3": "c", "n4": "a", "n5": "b"}
	for _, tc := range []struct {
		wanted         int
		replicas, want string
	}{
		{3, "n1 n2 n3", ""},
		{3, "n3 n4 n5", ""},
		{3, "n1 n2 n4", "partition 7 lies on [n1 n2 n4]: in 2 zones, and could lie in 3"},
		{3, "n1 n2", "partition 7 lies on [n1 n2]: in 2 zones, and could lie in 3"},
		{3, "n1 n2 n6", "partition 7 lies on [n1 n2 n6]: in 2 zones, and could lie in 3"},
		{3, "", "partition 7 lies on []: in 0 zones, and could lie in 3"},
		{2, "n1 n4", "partition 7 lies on [n1 n4]: in 1 zones, and could lie in 2"},
		{5, "n1 n2 n3 n4 n5", ""},
		{1, "n4", ""},
	} {
		got := ""
		if err := spread(zoneOf, []client.MeshPartition{{Partition: 7, Wanted: tc.wanted, Replicas: strings.Fields(tc.replicas)}}); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%d copies wanted, on %q: %q, want %q", tc.wanted, tc.replicas, got, tc.want)
		}
	}
	if spread(zoneOf, nil) == nil {
		t.Error("a list of no partitions is taken for one of partitions that are spread")
	}
}

//go:build skeinplanted

package planted

import "testing"

func TestOneBugIsPlantedAtATime(t *testing.T) {
	Set(SkipFsync)
	defer Set("")
	if !Is(SkipFsync) || Is(StaleEnd) {
		t.Fatal("another bug is planted than was set")
	}
	Set(StaleEnd)
	if Is(SkipFsync) || !Is(StaleEnd) {
		t.Fatal("another bug is planted than was set")
	}
}

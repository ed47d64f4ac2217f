//go:build !skeinplanted

package planted

import "testing"

func TestNothingIsPlantedWithoutTheTag(t *testing.T) {
	t.Setenv("SKEIN_PLANTED", string(SkipFsync))
	if Is(SkipFsync) {
		t.Fatal("a build without the tag has a bug planted")
	}
}

package log

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/skeinmesh/skein/transport/wire"
)

// FuzzMarks reads arbitrary bytes as the small files beside the segments, with a checksum made right: the trim mark, and the note of damage.
func FuzzMarks(f *testing.F) {
	f.Add(sealRecord(append([]byte(markMagic), make([]byte, 16)...)))
	f.Add([]byte("batch at 7 does not check out\n00000000000000000000.seg\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		for _, content := range [][]byte{b, sealRecord(append([]byte(markMagic), b...))} {
			if err := os.WriteFile(filepath.Join(dir, markName), content, 0o640); err != nil {
				t.Fatal(err)
			}
			m, err := readMark(OS{}, dir)
			if err != nil {
				if wire.KindOf(err) != wire.KindCorrupt {
					t.Fatal(err)
				}
				continue
			}
			if err := writeMark(OS{}, dir, m); err != nil {
				t.Fatal(err)
			}
			if again, err := readMark(OS{}, dir); err != nil || again != m {
				t.Fatalf("%+v became %+v, %v", m, again, err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, damageName), b, 0o640); err != nil {
			t.Fatal(err)
		}
		why, files, err := Damaged(OS{}, dir)
		if err != nil || why == nil {
			t.Fatalf("a note of damage is none: %v", err)
		}
		if err := MarkDamaged(OS{}, dir, errors.New("x"), files); err != nil {
			t.Fatal(err)
		}
		if _, again, err := Damaged(OS{}, dir); err != nil || len(again) != len(files) {
			t.Fatalf("%q became %q, %v", files, again, err)
		}
	})
}

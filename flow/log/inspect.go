package log

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/skeinmesh/skein/ring"
)

// The inspections read what a node that does not run has on disk, for people. They go on after damage where that is possible, change
// nothing, and hold one record or batch in memory at a time.

// FindingKind says what is the matter with a place on disk.
type FindingKind string

const (
	// FoundDamage: bytes that were durable do not check out, or do not fit what is before them.
	FoundDamage FindingKind = "damage"
	// FoundMissing: a file that was durable is not there.
	FoundMissing FindingKind = "missing"
	// FoundTorn: a write that was never known to be durable, and did not get whole. The next start cuts it away.
	FoundTorn FindingKind = "torn"
	// FoundUnapplied: batches that are sound, but later than the small state. The next start cuts them, and writes them again from the
	// journal.
	FoundUnapplied FindingKind = "unapplied"
	// FoundLeftover: a file that the next start removes.
	FoundLeftover FindingKind = "leftover"
)

// Damage reports whether it is damage: whatever else there is to find, the next start puts it in order by itself.
func (k FindingKind) Damage() bool { return k == FoundDamage || k == FoundMissing }

// Finding is a place on disk where something is the matter.
type Finding struct {
	Path   string
	Pos    int64 // the first byte that it is about
	End    int64 // where sound bytes begin again, or the end of the file
	Kind   FindingKind
	Detail string
}

// openInspected opens a file, which must be a regular one: nothing else can be read without side effects.
func openInspected(path string) (File, int64, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !st.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := OS{}.Open(path, os.O_RDONLY)
	return f, st.Size(), err
}

// ReadJournal recovers the journal in dir as OpenJournal does, but changes nothing and holds no lock. With an error it returns what it knew
// of the groups up to there. No journal: no groups.
func ReadJournal(dir string) ([]GroupState, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	j := &FileJournal{cfg: JournalConfig{Dir: dir, FS: OS{}}, readOnly: true, groups: map[ring.GroupID]*group{}}
	defer j.closeFiles()
	_, err := j.recover()
	return j.Groups(), err
}

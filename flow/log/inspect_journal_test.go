package log

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestReadJournalKnowsWhatOpeningKnowsAndChangesNothing(t *testing.T) {
	dir, _, _, _ := journalOnDisk(t)
	if err := os.WriteFile(filepath.Join(dir, "spare-new-7"), make([]byte, 8<<10), 0o640); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	groups, err := ReadJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	inspectJournal(t, dir)
	if !maps.Equal(before, contents(t, dir)) {
		t.Fatal("the directory was changed")
	}
	j := openTest(t, dir)
	want := j.Groups()
	for _, list := range [][]GroupState{groups, want} {
		slices.SortFunc(list, func(a, b GroupState) int { return a.Group.Compare(b.Group) })
	}
	if !reflect.DeepEqual(groups, want) {
		t.Fatalf("read %+v, opened %+v", groups, want)
	}
	if groups, err := ReadJournal(filepath.Join(dir, "nothing")); err != nil || groups != nil {
		t.Fatalf("no journal: %v, %v", groups, err)
	}
}

func TestInspectedJournalIsJudgedAsItsRecoveryJudgesIt(t *testing.T) {
	dir, file, start, end := journalOnDisk(t)
	file = filepath.Join(dir, file)
	sound := inspectJournal(t, dir)
	if len(sound.findings) > 0 || len(sound.records) < 9 || sound.ends[len(sound.ends)-1] < end {
		t.Fatalf("%+v", sound)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	try := func(name string, b []byte) inspected {
		t.Helper()
		if err := os.WriteFile(file, b, 0o640); err != nil {
			t.Fatal(err)
		}
		found := inspectJournal(t, dir)
		if _, err := ReadJournal(dir); (err != nil) != found.damage() {
			t.Fatalf("%s: recovery says %v, the inspection %+v", name, err, found.findings)
		}
		return found
	}
	for at := range int(end) + 100 {
		b := bytes.Clone(whole)
		b[at] ^= 1
		try(fmt.Sprintf("byte %d changed", at), b)
		try(fmt.Sprintf("zeros from byte %d", at), append(bytes.Clone(whole[:at]), make([]byte, len(whole)-at)...))
		try(fmt.Sprintf("cut at byte %d", at), whole[:at])
	}
	// Damage is named, and what lies beyond it shown.
	b := bytes.Clone(whole)
	b[start-1] ^= 1
	found := try("damage in the middle", b)
	if len(found.records) != len(sound.records)-1 || len(found.findings) != 1 {
		t.Fatalf("%d of %d records, %+v", len(found.records), len(sound.records), found.findings)
	}
	if f := found.findings[0]; f.Path != file || f.Kind != FoundDamage || f.End != start || f.Pos >= start || f.Pos < start-100 {
		t.Fatalf("%+v", f)
	}
	// A write that did not get whole is none.
	b = append(bytes.Clone(whole[:end-1]), make([]byte, len(whole)-int(end)+1)...)
	if found := try("torn", b); len(found.findings) != 1 || found.findings[0].Kind != FoundTorn || found.findings[0].Pos != start || found.ends[0] != start {
		t.Fatalf("%+v", found)
	}
}

func TestInspectedJournalNamesTheFileThatIsMissing(t *testing.T) {
	dir := t.TempDir()
	j, err := smallJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(40) {
		appendSync(t, j, Write{Group: testGroup(0), Entries: entries(1, i+1, i+2, 1000)})
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.journal"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	if found := inspectJournal(t, dir); len(found.findings) > 0 {
		t.Fatalf("%+v", found.findings)
	}
	if err := os.Remove(files[1]); err != nil {
		t.Fatal(err)
	}
	found := inspectJournal(t, dir)
	if len(found.findings) != 1 || found.findings[0].Path != files[1] || found.findings[0].Kind != FoundMissing {
		t.Fatalf("%+v", found.findings)
	}
	if _, err := ReadJournal(dir); wire.KindOf(err) != wire.KindCorrupt {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[2], []byte("SKEINJNL"), 0o640); err != nil { // no length is believed
		t.Fatal(err)
	}
	if found := inspectJournal(t, dir); !found.damage() || len(found.records) == 0 {
		t.Fatalf("%+v", found.findings)
	}
}

func TestJournalRecordsAreDescribed(t *testing.T) {
	dir, _, _, _ := journalOnDisk(t)
	kinds := map[string]int{}
	for _, r := range inspectJournal(t, dir).records {
		kinds[r.Kind]++
		switch r.Kind {
		case "entry":
			if r.Group == (ring.GroupID{}) || r.Index == 0 || r.Term != 1 || r.Bytes != 20 {
				t.Errorf("%+v", r)
			}
		case "hard-state":
			if r.HardState == nil || r.HardState.Term != r.Term || r.HardState.Vote == 0 {
				t.Errorf("%+v", r)
			}
		case "birth":
			if !r.Birth || r.Bytes != 5 {
				t.Errorf("%+v", r)
			}
		}
		if r.CRC == 0 || r.Durable > r.Pos {
			t.Errorf("%+v", r)
		}
	}
	if kinds["entry"] != 6 || kinds["hard-state"] != 2 || kinds["birth"] != 1 || kinds["checkpoint"] != 1 || kinds["mark"] == 0 {
		t.Fatalf("%v", kinds)
	}
}

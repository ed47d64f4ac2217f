package partition

import (
	"fmt"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
)

// Each start may be followed by a crash before anything is written.
func TestCrashesInARowAfterATrimLoseNothing(t *testing.T) {
	h := mustHost(t, Config{})
	entries := []log.Entry{openEntry(11, sessionA, 1000)}
	for i := range uint64(8) {
		entries = append(entries, batchEntry(12+i, sessionA, 1+i, 1000, rec{value: fmt.Sprintf("%01500d", i)}))
	}
	entries = append(entries, log.Entry{Index: 20, Term: 1, Data: EncodeTrim(nil, 6, 2000)})
	h.apply(entries[:4]...)
	h.sync(true)
	h.apply(entries[4:]...)
	h.sync(false) // the store is not flushed: it goes back
	none := func(int64) int64 { return 0 }
	for range 3 {
		h.crash(entries, none)
	}
	h.apply(entries[h.applied-10:]...)
	if h.p.Start() != 6 || h.p.Next() != 8 || len(h.read(6)) == 0 {
		t.Errorf("offsets [%d, %d)", h.p.Start(), h.p.Next())
	}
}

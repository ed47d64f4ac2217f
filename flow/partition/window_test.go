package partition

import (
	"encoding/binary"
	"testing"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
)

// identified is an entry of session A with n identities, from number first on.
func identified(index, seq uint64, stamp int64, first, n int) log.Entry {
	var b batch.Builder
	for i := range n {
		id := batch.Identity{Hash: batch.IdentityOf(ring.Seed{}, "", string(binary.BigEndian.AppendUint32(nil, uint32(first+i))))}
		if err := b.AddIdentified(&batch.Record{Value: []byte("v")}, id); err != nil {
			panic(err)
		}
	}
	m, payload := b.Finish(false)
	m.Session, m.Seq, m.Stamp = sessionA, seq, stamp
	return log.Entry{Index: index, Term: 1, Data: EncodeBatch(nil, &m, payload)}
}

func TestIdentitiesOfOneMinuteKeepToTheNodesLimit(t *testing.T) {
	const each, batches = 200, 250
	limit := NewNodeLimit(2 * minHeld)
	h := mustHost(t, Config{Limit: limit})
	other := mustHost(t, Config{Limit: limit})
	h.apply(openEntry(11, sessionA, 1000))
	other.apply(openEntry(11, sessionA, 1000))
	for i := range batches {
		h.apply(identified(uint64(12+i), uint64(1+i), 1000, i*each, each))
		other.apply(identified(uint64(12+i), uint64(1+i), 1000, i*each, each))
		if held := limit.Held(); held > 2*(minHeld+each) {
			t.Fatalf("%d identities in memory after %d batches", held, i+1)
		}
	}
	if n := len(h.p.st.window.buckets); n > 10 {
		t.Errorf("%d buckets for one minute", n)
	}
	words := 0
	for _, bu := range h.p.st.window.buckets {
		words += len(bu.filter)
	}
	if words != h.p.st.window.filters || words > 3*filterWords(each*batches) {
		t.Errorf("filters of %d words, counted %d", words, h.p.st.window.filters)
	}
	before := h.dump() // finds every identity
	h.close()
	h.open()
	if held := limit.Held(); held > 4*minHeld {
		t.Errorf("%d identities in memory after a restart", held)
	}
	if h.dump() != before {
		t.Error("differs after a restart")
	}
	to := mustHost(t, Config{})
	staged, err := transfer(t, h, to, newPipe(), nil)
	if err != nil {
		t.Fatal(err)
	}
	to.install(staged, h.applied)
	if to.dump() != before {
		t.Error("the snapshot differs")
	}
}

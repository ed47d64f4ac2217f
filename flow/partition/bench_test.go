package partition

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
)

// BenchmarkApply applies batches of 64 events of 1 KiB, without and with identities, over the real store and files.
func BenchmarkApply(b *testing.B) {
	for name, identified := range map[string]bool{"plain": false, "identified": true} {
		b.Run(name, func(b *testing.B) { benchmarkApply(b, identified) })
	}
}

func benchmarkApply(b *testing.B, identified bool) {
	store, err := log.OpenStore(log.StoreConfig{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // nothing of it is used again
	p, err := Open(Config{Dir: b.TempDir(), Store: store}, testGroup, testSpec(b), testPrefix)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // nothing of it is used again
	var bu batch.Builder
	for i := range 64 {
		id := batch.Identity{}
		if identified {
			id.Hash[15] = byte(1 + i)
		}
		if err := bu.AddIdentified(&batch.Record{Value: bytes.Repeat([]byte{byte(i)}, 1024)}, id); err != nil {
			b.Fatal(err)
		}
	}
	m, payload := bu.Finish(false)
	m.Session = sessionA
	sb := store.NewBatch()
	if _, err := p.Apply(openEntry(11, sessionA, 1), sb); err != nil {
		b.Fatal(err)
	}
	if err := sb.Commit(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	for b.Loop() {
		m.Seq++
		for i := range m.Identities {
			binary.LittleEndian.PutUint64(m.Identities[i].Hash[:], m.Seq*0x9e3779b97f4a7c15)
		}
		e := log.Entry{Index: 11 + m.Seq, Term: 1, Data: EncodeBatch(nil, &m, payload)}
		sb := store.NewBatch()
		if _, err := p.Apply(e, sb); err != nil {
			b.Fatal(err)
		}
		if err := sb.Commit(); err != nil {
			b.Fatal(err)
		}
	}
}

package flow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/backup"
	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

// rich publishes events of every kind: keys of all sorts and none, binary and large values, attributes, headers, duplicates.
func (m *mesh) rich(stream string) {
	m.t.Helper()
	large := make([]byte, 1<<20-2000)
	x := uint32(7)
	for i := range large { // nothing that can be compressed
		x = x*1664525 + 1013904223
		large[i] = byte(x >> 24)
	}
	var recs []batch.Record
	for i := range 60 {
		rec := batch.Record{Value: fmt.Appendf([]byte{0, 0xff, byte(i)}, "value %d", i), Type: "t", ContentType: "application/x-test", Time: int64(i)}
		switch i % 4 {
		case 0:
			rec.HasKey = true // an empty key
		case 1, 2:
			rec.HasKey, rec.Key = true, []byte{byte(i % 7), 0xfe}
		}
		if i%3 == 0 {
			rec.ID, rec.Source = fmt.Sprint(i), "test"
		}
		if i%5 == 0 {
			rec.Headers = []batch.Header{{Name: "b", Value: "1"}, {Name: "a", Value: "2"}}
		}
		recs = append(recs, rec)
	}
	recs = append(recs, batch.Record{HasKey: true, Key: []byte("large"), Value: large})
	for i := range recs { // one by one: many batches; those with an identity twice
		twice := []batch.Record{recs[i], recs[i]}
		if recs[i].ID == "" {
			twice = twice[:1]
		}
		if _, err := m.nodes[i%len(m.nodes)].broker.Publish(m.within(20*time.Second), stream, twice, PublishOptions{}); err != nil {
			m.t.Fatal(err)
		}
	}
}

// groupOf is the node's replica of a group.
func (nd *node) groupOf(g ring.GroupID) *replica.Group {
	nd.m.t.Helper()
	lg, ok := nd.host.Group(g)
	if !ok {
		nd.m.t.Fatalf("node %d has no replica of %s", nd.i, g)
	}
	return lg
}

// trim makes a partition's log begin at an offset.
func (m *mesh) trim(g ring.GroupID, start uint64) {
	m.t.Helper()
	if out := m.owner(g).groupOf(g).ProposeWait(m.within(10*time.Second), partition.EncodeTrim(nil, start, 1)); out.Err != nil {
		m.t.Fatal(out.Err)
	}
}

// export writes a stream through node i.
func (m *mesh) export(i int, stream string) []byte {
	m.t.Helper()
	var out bytes.Buffer
	t, err := m.nodes[i].broker.Export(m.within(60*time.Second), stream, &out)
	if err != nil {
		m.t.Fatal(err)
	}
	if t.Partitions == 0 || t.Bytes == 0 {
		m.t.Fatalf("%+v", t)
	}
	return out.Bytes()
}

// sameEvents holds that two streams give the same events at the same offsets, under each name.
func (m *mesh) sameEvents(i int, want []Event, stream string) {
	m.t.Helper()
	got := m.readAll(i, stream, earliest())
	byPlace := map[string]Event{}
	for _, e := range got {
		byPlace[fmt.Sprint(e.Partition, e.Offset)] = e
	}
	if len(got) != len(want) {
		m.t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for _, e := range want {
		e.Stream = stream
		if g := byPlace[fmt.Sprint(e.Partition, e.Offset)]; !reflect.DeepEqual(g, e) {
			m.t.Fatalf("partition %d, offset %d:\n%+v\nwant\n%+v", e.Partition, e.Offset, g, e)
		}
	}
}

func TestImportedStreamHasTheSameEventsAtTheSameOffsets(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 4, DedupeWindowMS: 600_000})
		m.rich("orders")
		end, err := m.nodes[0].broker.askPartition(m.within(5*time.Second), m.stream("orders"), &m.stream("orders").Partitions[0],
			partitionRequest{Op: opEnd, Group: info.Partitions[0].Group})
		if err != nil {
			t.Fatal(err)
		}
		m.trim(info.Partitions[0].Group, end.Next) // one partition without events, and one that begins later
		m.trim(info.Partitions[1].Group, 3)
		want := m.readAll(1, "orders", earliest())
		file := m.export(2, "orders")
		if _, err := m.nodes[0].broker.Import(m.within(60*time.Second), "orders", bytes.NewReader(file), ImportOptions{}); wire.CodeOf(err) != catalog.CodeExists {
			t.Fatalf("over a stream that exists: %v", err)
		}
		totals, err := m.nodes[1].broker.Import(m.within(60*time.Second), "restored", bytes.NewReader(file), ImportOptions{})
		if err != nil || totals.Events != uint64(len(want)) || totals.Partitions != 4 {
			t.Fatalf("%+v, %v", totals, err)
		}
		for i := range m.nodes {
			m.sameEvents(i, want, "restored")
		}
		// Keys stay where they were, and identities of events are known.
		for _, e := range want {
			if !e.HasKey && e.ID == "" {
				continue
			}
			res, err := m.nodes[0].broker.Publish(m.within(10*time.Second), "restored", []batch.Record{e.Record}, PublishOptions{})
			if err != nil || res[0].Partition != e.Partition || (e.ID != "") != res[0].Duplicate || e.ID != "" && res[0].Offset != e.Offset {
				t.Fatalf("partition %d, offset %d published again: %+v, %v", e.Partition, e.Offset, res[0], err)
			}
		}
		old, err := m.nodes[2].broker.Get(m.within(5*time.Second), "orders")
		if err != nil {
			t.Fatal(err)
		}
		now, err := m.nodes[2].broker.Get(m.within(5*time.Second), "restored")
		if err != nil || now.ID == old.ID || !now.Config.Equal(old.Config) || now.Partitions[3].Range != old.Partitions[3].Range ||
			now.Partitions[0].State != "open" {
			t.Fatalf("%+v, %v", now, err)
		}
	})
}

// stream is a stream's definition.
func (m *mesh) stream(name string) *catalog.Stream {
	m.t.Helper()
	s, err := m.nodes[0].broker.catalog.get(m.within(5*time.Second), name)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// cutReader ends with an error that is no end of a file.
type cutReader struct {
	r io.Reader
	n int
}

var errCut = errors.New("the connection was lost")

func (c *cutReader) Read(p []byte) (int, error) {
	if c.n == 0 {
		return 0, errCut
	}
	n, err := c.r.Read(p[:min(len(p), c.n)])
	c.n -= n
	return n, err
}

func TestInterruptedImportStaysClosedAndGoesOn(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 2})
		m.rich("orders")
		want := m.readAll(0, "orders", earliest())
		file, other := m.export(0, "orders"), m.export(0, "orders")
		for _, at := range []int{2000, len(file) / 2, len(file) - 10} {
			_, err := m.nodes[1].broker.Import(m.within(60*time.Second), "restored", &cutReader{bytes.NewReader(file), at}, ImportOptions{})
			if !errors.Is(err, errCut) {
				t.Fatalf("cut at byte %d: %v", at, err)
			}
			ctx := m.within(10 * time.Second)
			if info, err := m.nodes[2].broker.Get(ctx, "restored"); err != nil || info.Partitions[0].State != "importing" {
				t.Fatalf("%+v, %v", info, err)
			}
			if _, err := m.nodes[2].broker.Publish(ctx, "restored", []batch.Record{event("k", "v")}, PublishOptions{}); wire.CodeOf(err) != partition.CodeImporting {
				t.Fatalf("publish: %v", err)
			}
			if _, err := m.nodes[0].broker.Subscribe(ctx, "restored", earliest()); wire.CodeOf(err) != partition.CodeImporting {
				t.Fatalf("subscribe: %v", err)
			}
			if _, err := m.nodes[0].broker.EventAt(ctx, "restored", 0, 0); wire.CodeOf(err) != partition.CodeImporting {
				t.Fatalf("one event: %v", err)
			}
			if _, err := m.nodes[0].broker.Export(ctx, "restored", io.Discard); wire.CodeOf(err) != partition.CodeImporting {
				t.Fatalf("export: %v", err)
			}
			if _, err := m.nodes[0].broker.Import(ctx, "restored", bytes.NewReader(other), ImportOptions{}); wire.CodeOf(err) != catalog.CodeExists {
				t.Fatalf("another export: %v", err)
			}
		}
		if _, err := m.nodes[2].broker.Import(m.within(60*time.Second), "restored", bytes.NewReader(file), ImportOptions{}); err != nil {
			t.Fatal(err)
		}
		m.sameEvents(0, want, "restored")
		m.put(1, "restored", "k", "v")
	})
}

func TestDamagedImportLeavesNothing(t *testing.T) {
	inMesh(t, 1, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 2, Replicas: 1})
		m.rich("orders")
		file := m.export(0, "orders")
		for _, at := range []int{len(file) / 2, len(file) - 10} {
			spoiled := bytes.Clone(file)
			spoiled[at] ^= 4
			for name, b := range map[string][]byte{"changed": spoiled, "cut short": file[:at]} {
				_, err := m.nodes[0].broker.Import(m.within(60*time.Second), "restored", bytes.NewReader(b), ImportOptions{})
				if wire.CodeOf(err) != backup.CodeDamaged || !strings.Contains(err.Error(), "byte") {
					t.Fatalf("%s at byte %d: %v", name, at, err)
				}
				if _, err := m.nodes[0].broker.Get(m.within(5*time.Second), "restored"); wire.KindOf(err) != wire.KindNotFound {
					t.Fatalf("%s at byte %d: the stream is there: %v", name, at, err)
				}
			}
		}
		if _, err := m.nodes[0].broker.Import(m.within(60*time.Second), "restored", bytes.NewReader(file), ImportOptions{}); err != nil {
			t.Fatal("the whole file after damaged ones:", err)
		}
	})
}

// A copy of the file that turns out damaged must not take away what another run has completed, and what was published since.
func TestDamagedImportLeavesAStreamThatAnotherRunCompleted(t *testing.T) {
	inMesh(t, 1, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 2, Replicas: 1})
		m.rich("orders")
		file := m.export(0, "orders")
		pw, done := m.importMost(file)
		if _, err := m.nodes[0].broker.Import(m.within(60*time.Second), "restored", bytes.NewReader(file), ImportOptions{}); err != nil {
			t.Fatal(err)
		}
		m.put(0, "restored", "k", "published since")
		want := m.readAll(0, "restored", earliest())
		_ = pw.Close() // cut short
		if err := <-done; wire.CodeOf(err) != backup.CodeDamaged {
			t.Fatalf("the damaged copy: %v", err)
		}
		m.sameEvents(0, want, "restored")
	})
}

func TestImportWaitsForTheWholeMeshToKnowIt(t *testing.T) {
	refuse := func(context.Context, wire.Version) error {
		return wire.Errorf(wire.KindUnavailable, wire.CodeMeshVersion, "node b is too old")
	}
	ready := false
	inMesh(t, 1, func(c *Config) {
		c.RequireVersion = func(ctx context.Context, v wire.Version) error {
			if ready {
				return nil
			}
			return refuse(ctx, v)
		}
	}, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 1, Replicas: 1})
		m.put(0, "orders", "k", "v")
		file := m.export(0, "orders")
		if _, err := m.nodes[0].broker.Import(m.within(5*time.Second), "restored", bytes.NewReader(file), ImportOptions{}); wire.CodeOf(err) != wire.CodeMeshVersion {
			t.Fatal(err)
		}
		ready = true
		if _, err := m.nodes[0].broker.Import(m.within(5*time.Second), "restored", bytes.NewReader(file), ImportOptions{RetentionMS: -1}); err != nil {
			t.Fatal(err)
		}
		if cfg := m.stream("restored").Config; cfg.RetentionMS != -1 {
			t.Fatalf("%+v", cfg)
		}
	})
}

func TestImportGoesOnThroughAFailover(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 1})
		m.rich("orders")
		want := m.readAll(0, "orders", earliest())
		file := m.export(0, "orders")
		pw, done := m.importMost(file)
		g := m.stream("restored").Partitions[0].Group
		for {
			if owner := m.owner(g); owner.i != 0 {
				owner.stop()
				break
			}
			if err := m.owner(g).groupOf(g).Transfer(m.within(5*time.Second), m.nodes[1].id); err != nil {
				virtual.Sleep(100 * time.Millisecond)
			}
		}
		if _, err := pw.Write(file[len(file)-1000:]); err != nil {
			t.Fatal(err)
		}
		_ = pw.Close()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		m.sameEvents(0, want, "restored")
	})
}

// importMost begins an import, and gives it all of a file but the last thousand bytes, which are to be written; done tells how it ended.
func (m *mesh) importMost(file []byte) (rest *io.PipeWriter, done chan error) {
	m.t.Helper()
	pr, pw := io.Pipe()
	done = make(chan error, 1)
	go func() {
		_, err := m.nodes[0].broker.Import(m.within(100*time.Second), "restored", pr, ImportOptions{})
		done <- err
	}()
	if _, err := pw.Write(file[:len(file)-1000]); err != nil {
		m.t.Fatal(err)
	}
	return pw, done
}

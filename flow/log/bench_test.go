package log

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/skeinmesh/skein/ring"
)

// BenchmarkJournal commits with fsync: each group has one unit outstanding.
func BenchmarkJournal(b *testing.B) {
	for _, c := range []struct{ groups, size int }{{1, 1 << 10}, {64, 1 << 10}, {8, 64 << 10}, {64, 64 << 10}} {
		b.Run(fmt.Sprintf("groups=%d/bytes=%d", c.groups, c.size), func(b *testing.B) {
			j, err := OpenJournal(JournalConfig{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = j.Close() }()
			data := make([]byte, c.size)
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			b.ResetTimer()
			var all sync.WaitGroup
			for g := range c.groups {
				all.Go(func() { benchGroup(b, j, testGroup(g), data, (b.N+c.groups-1-g)/c.groups) })
			}
			all.Wait()
		})
	}
}

func benchGroup(b *testing.B, j *FileJournal, g ring.GroupID, data []byte, n int) {
	ch := make(chan error, 1)
	done := func(err error) { ch <- err }
	for i := 1; i <= n; i++ {
		j.Append(context.Background(), []Write{{Group: g, Entries: []Entry{{Index: uint64(i), Term: 1, Data: data}}}}, true, done)
		if err := <-ch; err != nil {
			b.Error(err)
			return
		}
		j.Release(g, uint64(i))
	}
}

// BenchmarkSegments appends batches of 64 KiB, and reads them back from the file.
func BenchmarkSegments(b *testing.B) {
	const size = 64 << 10
	open := func(b *testing.B) *Segments {
		s, err := OpenSegments(b.TempDir(), SegmentConfig{TailBytes: -1}, Recovery{})
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(size)
		b.ReportAllocs()
		return s
	}
	b.Run("append", func(b *testing.B) {
		s := open(b)
		defer func() { _ = s.Close() }()
		m, p := testBatch(0, size)
		b.ResetTimer()
		for i := range b.N {
			m.Base, m.Index = uint64(2*i), uint64(i+1)
			if err := s.Append(m, p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		s := open(b)
		defer func() { _ = s.Close() }()
		fill(b, s, 0, 256, size)
		buf := make([]byte, 300<<10)
		b.ResetTimer()
		for n, at := 0, uint64(0); n < b.N; {
			got, err := s.Read(at%s.Next(), 256<<10, buf)
			if err != nil {
				b.Fatal(err)
			}
			n += len(got)
			at = got[len(got)-1].Meta.Next()
		}
	})
}

package transport_test

import (
	"context"
	"io"
	"sync"
	"testing"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func pair(b *testing.B, be backend) (a, c *node) {
	a, c = start(b, be, "a", ""), start(b, be, "c", "")
	meet(b, a, c)
	return a, c
}

func pairWith(b *testing.B, be backend, more func(*node)) (a, c *node) {
	a, c = start(b, be, "a", ""), startWith(b, be, "c", "", more)
	meet(b, a, c)
	return a, c
}

func eachBench(b *testing.B, f func(b *testing.B, be backend)) {
	for _, be := range backends() {
		b.Run(be.name, func(b *testing.B) { f(b, be) })
	}
}

func BenchmarkPingPong(b *testing.B) {
	eachBench(b, func(b *testing.B, be backend) {
		a, c := pair(b, be)
		body := make([]byte, 64)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := a.Call(context.Background(), c.id, wire.ClassControl, mEcho, body); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkStreamPingPong(b *testing.B) {
	eachBench(b, func(b *testing.B, be backend) {
		a, c := pair(b, be)
		ctx := context.Background()
		s, err := a.Open(ctx, c.id, wire.ClassBulk, mMirror, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close(nil)
		if _, err := s.Recv(ctx); err != nil {
			b.Fatal(err)
		}
		body := make([]byte, 64)
		b.ReportAllocs()
		for b.Loop() {
			if s.Send(ctx, body) != nil {
				b.Fatal("send")
			}
			if _, err := s.Recv(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkStream64KiB(b *testing.B) {
	eachBench(b, func(b *testing.B, be backend) {
		const mSink wire.Method = 2000
		got := make(chan struct{})
		sink := func(n *node) {
			n.HandleStream(mSink, func(ctx context.Context, _ ring.NodeID, _ []byte, s wire.Stream) error {
				defer close(got)
				for {
					if _, err := s.Recv(ctx); err != nil {
						return nil
					}
				}
			})
		}
		a, c := pairWith(b, be, sink)
		ctx := context.Background()
		s, err := a.Open(ctx, c.id, wire.ClassBulk, mSink, nil)
		if err != nil {
			b.Fatal(err)
		}
		body := make([]byte, 64<<10)
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Send(ctx, body); err != nil {
				b.Fatal(err)
			}
		}
		_ = s.CloseSend()
		if _, err := s.Recv(ctx); err != io.EOF {
			b.Fatal(err)
		}
		<-got
		_ = s.Close(nil)
	})
}

func BenchmarkMessages64KiB(b *testing.B) { benchMessages(b, 64<<10) }
func BenchmarkMessages1KiB(b *testing.B)  { benchMessages(b, 1<<10) }

func benchMessages(b *testing.B, size int) {
	eachBench(b, func(b *testing.B, be backend) {
		const mCount wire.Method = 2001
		window := make(chan struct{}, 256) // as a replication window: what is not yet received
		a, c := pairWith(b, be, func(n *node) {
			n.Handle(mCount, func(ring.NodeID, []byte) error {
				<-window
				return nil
			})
		})
		body := make([]byte, size)
		b.SetBytes(int64(size))
		b.ReportAllocs()
		for b.Loop() {
			window <- struct{}{}
			if !a.Send(c.id, wire.ClassBulk, mCount, body) {
				b.Fatal("dropped")
			}
		}
		for range cap(window) { // all have arrived
			window <- struct{}{}
		}
	})
}

func BenchmarkParallelCalls(b *testing.B) {
	eachBench(b, func(b *testing.B, be backend) {
		a, c := pair(b, be)
		body := make([]byte, 1024)
		b.ReportAllocs()
		b.SetParallelism(16)
		var once sync.Once
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := a.Call(context.Background(), c.id, wire.ClassBulk, mEcho, body); err != nil {
					once.Do(func() { b.Error(err) })
				}
			}
		})
	})
}

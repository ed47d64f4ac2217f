package flow

import (
	"context"
	"sync"

	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// maxReadWindow bounds the credit that a reader may hold, whatever it asks for.
const maxReadWindow = 4 << 20

// HandleSubscribe serves a MethodSubscribe stream from the replica on this node, owner or not: committed events never change.
func (b *Broker) HandleSubscribe(ctx context.Context, _ ring.NodeID, hello []byte, st wire.Stream) error {
	var h subscribeHello
	if err := wire.Unmarshal(hello, &h); err != nil {
		return err
	}
	p, ok := b.localPartition(h.Group)
	if !ok {
		_, err := b.localOwner(h.Group)
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c := &readCredit{wake: make(chan struct{}, 1)}
	c.add(h.Credit)
	var credits sync.WaitGroup
	credits.Go(func() { cancel(c.receive(ctx, st)) })
	err := sendBatches(ctx, p, h.From, c, st)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cancel(err)
	_ = st.Close(err) // wakes receive
	credits.Wait()
	return err
}

// sendBatches sends runs of whole batches while the reader has credit. One batch may overdraw it.
func sendBatches(ctx context.Context, p *partition.Partition, from uint64, c *readCredit, st wire.Stream) error {
	var once sync.Once
	dry := func() {
		once.Do(func() { _ = st.Send(ctx, []byte{frameDry}) }) // an error shows at the next send
	}
	src := localSource{p}
	for {
		room, err := c.wait(ctx)
		if err != nil {
			return err
		}
		if err := src.ready(ctx, from, dry); err != nil {
			return err
		}
		raw, err := p.Read(from, int(min(room, chunkBytes)))
		if err != nil {
			return err
		}
		if len(raw) == 0 {
			continue // woken for something else
		}
		if from, err = lastNext(raw); err != nil {
			return err
		}
		if err := st.Send(ctx, raw); err != nil {
			return err
		}
		c.add(-int64(len(raw)))
	}
}

// lastNext is the offset after the last batch of a run.
func lastNext(raw []byte) (uint64, error) {
	batches, err := split(raw)
	if err != nil {
		return 0, err
	}
	return batches[len(batches)-1].Meta.Next(), nil
}

// readCredit is the reader's credit on the replica's side.
type readCredit struct {
	mu   sync.Mutex
	left int64
	wake chan struct{}
}

func (c *readCredit) add(n int64) {
	c.mu.Lock()
	c.left = min(c.left+n, maxReadWindow)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// wait returns the credit left once there is any.
func (c *readCredit) wait(ctx context.Context) (int64, error) {
	for {
		c.mu.Lock()
		left := c.left
		c.mu.Unlock()
		if left > 0 {
			return left, nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// receive takes credit frames until the stream ends.
func (c *readCredit) receive(ctx context.Context, st wire.Stream) error {
	for {
		frame, err := st.Recv(ctx)
		if err != nil {
			return err
		}
		var f creditFrame
		if err := wire.Unmarshal(frame, &f); err != nil {
			return err
		}
		if f.Credit < 0 || f.Credit > maxReadWindow {
			return wire.Errorf(wire.KindInvalid, "", "credit of %d bytes; at most %d", f.Credit, maxReadWindow)
		}
		c.add(f.Credit)
	}
}

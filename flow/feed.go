package flow

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// feed reads one partition for one subscription: from the replica here where there is one, else from the owner or another
// replica, moving on to the next one when a source fails. It reads only while its subscription has room.
type feed struct {
	sub   *subscription
	part  *catalog.Partition
	next  uint64  // offset to read next
	end   *uint64 // stop before this offset; nil: never
	tries int
	once  sync.Once
}

// looked notes that the feed found its source empty, or has something: see subscription.looks.
func (f *feed) looked() { f.once.Do(f.sub.looks.Done) }

// source is one place to read a partition from.
type source interface {
	// ready waits until there is something at offset from or later, calling dry before it waits.
	ready(ctx context.Context, from uint64, dry func()) error
	// read returns batches that hold offset from or later ones; none when ready was woken for nothing. They stay valid until the
	// chunk was delivered.
	read(from uint64, maxBytes int) ([]framed, error)
	close()
}

// run reads until the end, a final error, or the subscription's end.
func (f *feed) run() {
	defer f.looked()
	ctx := f.sub.ctx
	for ctx.Err() == nil {
		if f.end != nil && f.next >= *f.end {
			f.sub.chunks <- chunk{part: f.part.ID, done: true}
			return
		}
		src, err := f.open(ctx)
		if err == nil {
			err = f.drainSource(ctx, src)
			src.close()
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if final(err) {
			f.sub.chunks <- chunk{part: f.part.ID, err: err}
			return
		}
		if e, ok := errors.AsType[*wire.Error](err); ok && e.Kind == wire.KindNotOwner {
			f.sub.b.owners.learn(f.part.Group, e.Owner, e.Term) // a replica that moved away is asked in vain
		}
		f.sub.b.metrics.feedRetries.Inc()
		f.tries++
		if f.tries%8 == 4 && f.deleted(ctx) {
			f.sub.chunks <- chunk{part: f.part.ID, err: streamNotFound(f.sub.stream.Name)}
			return
		}
		d := min(retryFirst<<min(f.tries, 8), 4*retryCap)
		_ = sleep(ctx, f.sub.b.jittered(d)) // the loop looks at ctx
	}
}

// deleted asks the catalog whether the stream is gone: no replica would ever answer.
func (f *feed) deleted(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	gone, _ := f.sub.b.catalog.lost(ctx, f.sub.stream.Name, f.part.Group) // without an answer nothing is certain
	return gone
}

// final errors end the subscription: another replica would say the same.
func final(err error) bool {
	switch wire.KindOf(err) {
	case wire.KindInvalid:
		return true
	case wire.KindNotFound:
		return wire.CodeOf(err) == wire.CodeOffsetExpired
	}
	return false
}

// drainSource reads from one source until the end or an error.
func (f *feed) drainSource(ctx context.Context, src source) error {
	for f.end == nil || f.next < *f.end {
		if err := src.ready(ctx, f.next, f.looked); err != nil {
			return err
		}
		// First the token, then the bytes: a stopped reader holds no more than its tokens, and one frame of each remote source.
		extra, err := f.sub.takeToken()
		if err != nil {
			return err
		}
		batches, err := src.read(f.next, max(int(extra), minChunk))
		if err == nil {
			batches = f.clip(batches)
		}
		if err != nil || len(batches) == 0 {
			f.sub.giveBack(extra)
			if err != nil {
				return err
			}
			continue
		}
		f.sub.chunks <- chunk{part: f.part.ID, batches: batches, from: f.next, token: true, extra: extra}
		f.looked()
		f.next = batches[len(batches)-1].Meta.Next()
		f.tries = 0
	}
	return nil
}

// clip drops whole batches at or after the end. A batch that crosses the end is delivered whole: the end was a moment between
// two batches, so none does.
func (f *feed) clip(batches []framed) []framed {
	if f.end == nil {
		return batches
	}
	end := slices.IndexFunc(batches, func(b framed) bool { return b.Meta.Base >= *f.end })
	if end < 0 {
		return batches
	}
	if end == 0 {
		f.next = *f.end // else it is where the batches that are left begin
	}
	return batches[:end]
}

// open finds a source for the feed.
func (f *feed) open(ctx context.Context) (source, error) {
	return f.sub.b.openSource(ctx, f.part, f.next, f.tries)
}

// openSource finds a source of a partition: the local replica, the owner, a founder or any live member. tries counts those that failed in a row.
func (b *Broker) openSource(ctx context.Context, part *catalog.Partition, from uint64, tries int) (source, error) {
	if p, ok := b.localPartition(part.Group); ok && tries%4 != 3 {
		return &localSource{p: p}, nil
	}
	owner, ok := b.owners.guess(part.Group)
	if !ok || tries%2 == 1 {
		owner, ok = b.anyOf(foundersOf(part), tries)
	}
	if !ok {
		return nil, noOwner(part.Group, nil)
	}
	return openRemote(ctx, b, owner, part.Group, from)
}

// localSource reads the replica on this node.
type localSource struct{ p *partition.Partition }

func (l *localSource) ready(ctx context.Context, from uint64, dry func()) error {
	grown := l.p.Wait(from)
	select {
	case <-grown:
		return nil
	default:
	}
	dry()
	select {
	case <-grown:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *localSource) read(from uint64, maxBytes int) ([]framed, error) {
	raw, err := l.p.Read(from, maxBytes)
	if err != nil {
		return nil, err
	}
	return split(raw)
}

func (l *localSource) close() {}

// remoteCredit is what a replica on another node may send ahead of the reader, in bytes.
const remoteCredit = 64 << 10

// remoteSource reads a replica on another node, which sends as far as it has credit.
type remoteSource struct {
	st     wire.Stream
	frame  []byte // received by ready, for read
	taken  int64  // bytes received and not yet given back as credit
	cancel context.CancelFunc
}

func openRemote(ctx context.Context, b *Broker, node ring.NodeID, g ring.GroupID, from uint64) (source, error) {
	hello, err := wire.Marshal(&subscribeHello{Group: g, From: from, Credit: remoteCredit})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	patience := time.AfterFunc(attemptTimeout, cancel)
	st, err := b.cfg.Peers.Open(ctx, node, wire.ClassBulk, wire.MethodSubscribe, hello)
	patience.Stop()
	if err != nil {
		cancel()
		return nil, err
	}
	return &remoteSource{st: st, cancel: cancel}, nil
}

// ready gives credit for what was delivered before, then waits for the next batches. They came within the credit.
func (r *remoteSource) ready(ctx context.Context, _ uint64, dry func()) error {
	if r.taken > 0 {
		b, err := wire.Marshal(&creditFrame{Credit: r.taken})
		if err != nil {
			return err
		}
		if err := r.st.Send(ctx, b); err != nil {
			return err
		}
		r.taken = 0
	}
	frame, err := r.st.Recv(ctx)
	for err == nil && len(frame) == 1 && frame[0] == frameDry {
		dry()
		frame, err = r.st.Recv(ctx)
	}
	if errors.Is(err, io.EOF) {
		err = &wire.Error{Kind: wire.KindClosed, Detail: "the replica ended the read"}
	}
	r.frame, r.taken = frame, int64(len(frame))
	return err
}

func (r *remoteSource) read(uint64, int) ([]framed, error) {
	frame := r.frame
	r.frame = nil
	return split(frame)
}

func (r *remoteSource) close() {
	_ = r.st.Close(nil)
	r.cancel()
}

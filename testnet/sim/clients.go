package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

const streamName = "orders"

// clients are what uses the mesh while it is in trouble.
type clients struct {
	m     *mesh
	stop  chan struct{}
	once  sync.Once
	there atomic.Int64 // clients that go on
	busy  atomic.Int64 // publishers whose events are not all acknowledged
}

// leave has all clients end what they do, and then go.
func (c *clients) leave() { c.once.Do(func() { close(c.stop) }) }

func (c *clients) start(fn func()) {
	c.there.Add(1)
	go func() {
		defer c.m.w.say("z", func() {}) // the loop looks
		defer c.there.Add(-1)
		fn()
	}()
}

func (c *clients) stopped() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

// door is a node that is there, chosen at random; nil: there is none.
func (c *clients) door(r *rand.Rand) *process {
	for range 4 {
		if p := c.m.nodes[r.IntN(len(c.m.nodes))].proc.Load(); p != nil {
			return p
		}
	}
	return nil
}

func pause(r *rand.Rand, most time.Duration) { virtual.Sleep(time.Duration(1 + r.Int64N(int64(most)))) }

func value(publisher, key string, seq uint64) string {
	return fmt.Sprintf("%s|%s|%d", publisher, key, seq)
}

func parse(v []byte) (publisher, key string, seq uint64, ok bool) {
	f := strings.Split(string(v), "|")
	if len(f) != 3 {
		return "", "", 0, false
	}
	seq, err := strconv.ParseUint(f[2], 10, 64)
	return f[0], f[1], seq, err == nil
}

// publisher sends batches of events one after the other, each until it is acknowledged, through whichever node is there. It gives up on some,
// but not on the last, which is sent once everything is healed.
func (c *clients) publisher(id int, seed uint64) {
	c.busy.Add(1)
	c.start(func() {
		defer c.busy.Add(-1)
		r := rand.New(rand.NewPCG(seed, uint64(100+id)))
		who := fmt.Sprintf("p%d", id)
		seqs := map[string]uint64{}
		for last := false; !last; {
			pause(r, 120*time.Millisecond)
			last = c.stopped()
			var recs []batch.Record
			for range 1 + r.IntN(4) {
				key := fmt.Sprintf("k%d-%d", id, r.IntN(3))
				seqs[key]++
				v := value(who, key, seqs[key])
				c.m.history.Sent(who, key, seqs[key])
				recs = append(recs, batch.Record{Key: []byte(key), HasKey: true, Value: []byte(v), Source: "sim", ID: v})
			}
			givesUp := r.IntN(10) == 0 && !last
			for try := 0; len(recs) > 0 && !c.m.over.Load(); try++ {
				recs = c.try(r, who, recs)
				if givesUp && try > 0 {
					break // what became of them is not known; none of them is sent again
				}
			}
		}
	})
}

// try sends events once and returns those that are not acknowledged.
func (c *clients) try(r *rand.Rand, who string, recs []batch.Record) (left []batch.Record) {
	p := c.door(r)
	if p == nil {
		pause(r, 300*time.Millisecond)
		return recs
	}
	patience := time.Duration(200+r.IntN(3800)) * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), patience+time.Duration(r.IntN(1_000_000)))
	defer cancel()
	res, err := p.broker.Publish(ctx, streamName, recs, flow.PublishOptions{})
	dead := p.dead.Load()
	for i := range recs {
		_, key, seq, _ := parse(recs[i].Value)
		e := err
		if e == nil {
			e = res[i].Err
		}
		switch kind := wire.KindOf(e); {
		case dead: // it died before it could tell
			c.m.history.Unknown(who, key, seq)
			left = append(left, recs[i])
		case e == nil:
			c.m.history.Acked(who, key, seq, res[i].Partition, res[i].Offset, res[i].Duplicate)
			c.m.w.say(fmt.Sprintf("acked %s %s %d", who, key, seq), func() {
				c.m.w.note("acked %s %s %d at %d:%d", who, key, seq, res[i].Partition, res[i].Offset)
			})
		case kind == wire.KindUnavailable || kind == wire.KindNoCredit || kind == wire.KindNotOwner:
			c.m.history.Refused(who, key, seq)
			left = append(left, recs[i])
		case kind == wire.KindInvalid || kind == wire.KindConflict || kind == wire.KindCorrupt || kind == wire.KindNotFound:
			c.m.fail("publish of %s through node %d: %v", recs[i].Value, p.nd.i, e)
			c.m.history.Unknown(who, key, seq)
			left = append(left, recs[i])
		default:
			c.m.history.Unknown(who, key, seq)
			left = append(left, recs[i])
		}
	}
	if len(left) > 0 {
		pause(r, 200*time.Millisecond)
	}
	return left
}

// tail reads the stream as it grows, from wherever it can, by its cursor.
func (c *clients) tail(id int, seed uint64) {
	c.start(func() {
		r := rand.New(rand.NewPCG(seed, uint64(200+id)))
		from := flow.Position{Kind: flow.FromEarliest}
		for !c.stopped() {
			pause(r, 200*time.Millisecond)
			if p := c.door(r); p != nil {
				c.follow(r, p, fmt.Sprintf("tail%d", id), &from, false)
			}
		}
	})
}

// untilEnd reads the stream to its end again and again.
func (c *clients) untilEnd(id int, seed uint64) {
	c.start(func() {
		r := rand.New(rand.NewPCG(seed, uint64(300+id)))
		for n := 0; !c.stopped(); n++ {
			pause(r, 1500*time.Millisecond)
			if p := c.door(r); p != nil {
				reader, begun := fmt.Sprintf("end%d-%d", id, n), c.m.history.Now()
				if c.follow(r, p, reader, &flow.Position{Kind: flow.FromEarliest}, true) {
					c.m.history.ReadUntil(reader, begun)
				}
			}
		}
	})
}

// follow reads until the end, for a while, or until something fails; true: to the end.
func (c *clients) follow(r *rand.Rand, p *process, reader string, from *flow.Position, untilEnd bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second+time.Duration(r.Int64N(3_000_000_000)))
	defer cancel()
	sub, err := p.broker.Subscribe(ctx, streamName, flow.SubscribeRequest{From: *from, UntilEnd: untilEnd})
	if err != nil {
		return false
	}
	defer sub.Close() //nolint:errcheck // it returns nil
	for untilEnd || !c.stopped() {
		chunk, err := sub.Next(ctx, 0)
		if err != nil || p.dead.Load() {
			return false
		}
		for _, e := range chunk.Events {
			who, key, seq, ok := parse(e.Value)
			if !ok {
				c.m.fail("%s read %q through node %d", reader, e.Value, p.nd.i)
				continue
			}
			c.m.history.Read(reader, e.Partition, e.Offset, who, key, seq)
		}
		*from = flow.Position{Kind: flow.FromCursor, Cursor: chunk.Cursor}
		if chunk.End {
			return true
		}
	}
	return false
}

func (c *clients) finalRead(p *process, reader string) bool {
	return c.follow(rand.New(rand.NewPCG(1, 1)), p, reader, &flow.Position{Kind: flow.FromEarliest}, true)
}

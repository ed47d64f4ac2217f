package bench

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
)

// nodes is how many processes each system has; every stream has a copy on each.
const nodes = 3

// system is one cluster under load. Its methods are called by one goroutine at a time.
type system interface {
	name() string
	// start starts the processes and returns once a stream with three copies exists and took an event.
	start(ctx context.Context) error
	// create makes a stream that spreads over n partitions (where the system has none, n streams).
	create(ctx context.Context, stream string, n int) error
	remove(ctx context.Context, stream string) error
	// batched publishes as fast as it can for d, or until about limit events (0: no limit), over several connections. It returns how many
	// were acknowledged, and how many per second.
	batched(ctx context.Context, stream string, load *payloads, d time.Duration, limit int) (acked int, rate float64, err error)
	// one returns a function that publishes one event and waits for its acknowledgement; it is called by many goroutines.
	one(ctx context.Context, stream string) (publish publishFunc, done func(), err error)
	// read reads the n events of a stream from its start and returns events per second.
	read(ctx context.Context, stream string, n int) (float64, error)
	// owner returns which process leads the stream's only partition.
	owner(ctx context.Context, stream string) (int, error)
	// survivors is one, over connections to all processes but one.
	survivors(ctx context.Context, stream string, but int) (publish publishFunc, done func(), err error)
	processes() []*proc
	stop()
}

type publishFunc = func(ctx context.Context, value []byte) error

// What the batched load looks like, for all systems alike: four connections, spread over the nodes, with about 2,000 events under way.
const (
	connections = 4
	window      = 500 // events under way per connection
)

// payloads are made before anything is measured.
type payloads struct {
	json   bool
	values [][]byte
	bodies [][]byte // the same values as NDJSON bodies of window events
}

// ndjsonQuery goes with bodies: values that are not JSON travel in envelopes.
func (p *payloads) ndjsonQuery() string {
	if p.json {
		return "?summary=true"
	}
	return "?summary=true&envelope=true"
}

const bodiesPerLoad = 16

func newPayloads(size int, asJSON bool, rng *rand.Rand) *payloads {
	p := &payloads{json: asJSON}
	for range bodiesPerLoad {
		var body []byte
		for range window {
			v := randomBytes(size, rng)
			if asJSON {
				v = jsonLike(size, rng)
				body = append(append(body, v...), '\n')
			} else {
				body = append(body, `{"value_base64":"`...)
				body = base64.StdEncoding.AppendEncode(body, v)
				body = append(body, "\"}\n"...)
			}
			p.values = append(p.values, v)
		}
		p.bodies = append(p.bodies, body)
	}
	return p
}

func randomBytes(n int, rng *rand.Rand) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

var words = []string{
	"order", "accepted", "payment", "shipped", "customer", "warehouse", "retry", "timeout", "upstream", "connection", "closed", "session",
	"token", "refreshed", "cache", "miss", "evicted", "partition", "leader", "replica", "request", "completed", "validation", "failed",
	"inventory", "reserved", "released", "invoice", "created", "queued", "delivered", "returned", "discount", "applied", "checkout", "started",
}

// jsonLike makes an event of exactly n bytes as services write them: fixed names, ids that do not repeat, and words.
func jsonLike(n int, rng *rand.Rand) []byte {
	var id [8]byte
	for i := range id {
		id[i] = byte(rng.Uint32())
	}
	at := time.UnixMilli(1_700_000_000_000 + rng.Int64N(1e9)).UTC().Format("2006-01-02T15:04:05.000Z")
	head := fmt.Sprintf(`{"time":%q,"id":%q,"n":%d,"m":"`, at, hex.EncodeToString(id[:]), rng.IntN(10_000))
	if n >= 512 {
		head = fmt.Sprintf(`{"time":%q,"level":"info","service":"checkout-%d","trace_id":"%s%s","user_id":%d,"amount":%.2f,"path":"/v1/orders/%d","message":"`,
			at, rng.IntN(20), hex.EncodeToString(id[:]), hex.EncodeToString(id[:4]), rng.IntN(100_000), rng.Float64()*500, rng.IntN(1_000_000))
	}
	b := []byte(head)
	for len(b) < n-2 {
		b = append(append(b, words[rng.IntN(len(words))]...), ' ')
	}
	b = append(b[:n-2], `"}`...)
	if !json.Valid(b) {
		panic("bench: generated an invalid event: " + string(b))
	}
	return b
}

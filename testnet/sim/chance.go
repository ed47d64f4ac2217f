package sim

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// Chance is a source of random bytes for crypto/rand while a run goes on. What a goroutine draws follows from the seed, the instant, and
// how many goroutines were started before it: not from who of several at one instant draws first.
type Chance struct {
	Seed uint64

	mu   sync.Mutex
	base uint64 // number of the goroutine that made the world
	at   int64
	draw map[uint64]uint64 // draws of each goroutine at that instant
}

// begin counts goroutines from the caller on.
func (c *Chance) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = goroutine()
}

// source is for one draw of the caller.
func (c *Chance) source() rand.Source {
	g, now := goroutine(), time.Now().UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at != now || c.draw == nil {
		c.at, c.draw = now, map[uint64]uint64{}
	}
	c.draw[g]++
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], c.Seed)
	binary.LittleEndian.PutUint64(key[8:], uint64(now))
	binary.LittleEndian.PutUint64(key[16:], g-c.base)
	binary.LittleEndian.PutUint64(key[24:], c.draw[g])
	return rand.NewChaCha8(key)
}

// Read implements io.Reader. It never fails.
func (c *Chance) Read(b []byte) (int, error) {
	src := c.source()
	for i := 0; i < len(b); i += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], src.Uint64())
		copy(b[i:], word[:])
	}
	return len(b), nil
}

// Int64N draws from [0,n).
func (c *Chance) Int64N(n int64) int64 { return rand.New(c.source()).Int64N(n) }

// goroutine is the number of the calling goroutine: with one processor they count up as goroutines are started.
func goroutine() uint64 {
	var buf [64]byte
	b := buf[:runtime.Stack(buf[:], false)]
	b = bytes.TrimPrefix(b, []byte("goroutine "))
	i := bytes.IndexByte(b, ' ')
	n, _ := strconv.ParseUint(string(b[:max(i, 0)]), 10, 64) // 0 would only be less repeatable
	return n
}

package logtest

import (
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
)

// Config says how a Disk behaves. The zero value is a disk that syncs from a goroutine of its own and keeps all entries.
type Config struct {
	// Rand decides what of the unsynced survives a crash; nil: nothing does.
	Rand *rand.Rand
	// Defer, where not nil, is called with a function that ends one write (and sync) of the journal; a simulation calls that
	// function later, from its loop, exactly once and in any order. It must not call it from within Defer.
	Defer func(complete func())
	// RetainBytes bounds the data of entries kept although they were released; 0: all are kept.
	RetainBytes int64
}

// ErrCrashed is what a journal or store says after its disk crashed under it.
var ErrCrashed = errors.New("the disk crashed")

// Disk is what one node has on disk. Safe for concurrent use.
type Disk struct {
	cfg Config

	mu      sync.Mutex
	journal *Journal // open now
	store   *Store
	syncErr error

	groups  map[ring.GroupID]*groupState // durable
	kv      map[string][]byte            // durable
	crashes int
}

// NewDisk returns an empty disk.
func NewDisk(cfg Config) *Disk {
	return &Disk{cfg: cfg, groups: map[ring.GroupID]*groupState{}, kv: map[string][]byte{}}
}

// OpenJournal opens the journal on the disk; one at a time.
func (d *Disk) OpenJournal() *Journal {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.journal != nil {
		panic("logtest: the journal is open already")
	}
	j := &Journal{d: d, visible: cloneGroups(d.groups), failed: make(chan struct{})}
	j.wake.L = &d.mu
	d.journal = j
	if d.cfg.Defer == nil {
		j.done.Go(j.run)
	}
	return j
}

// OpenStore opens the store on the disk; one at a time.
func (d *Disk) OpenStore() *Store {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.store != nil {
		panic("logtest: the store is open already")
	}
	s := &Store{d: d, kv: cloneKV(d.kv)}
	d.store = s
	return s
}

// Crash stops what is open, as a loss of power does: no done is called any more, all calls fail. What is opened next finds what was
// durable and, with Config.Rand, a random prefix of what came after it.
func (d *Disk) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crashes++
	if j := d.journal; j != nil {
		rest := append(append([]*unit{}, j.written...), j.queued...)
		for _, u := range rest[:d.prefix(len(rest))] {
			applyUnit(d.groups, u.writes) // refused units change nothing
		}
		j.dead = ErrCrashed
		j.queued, j.written = nil, nil
		j.wake.Broadcast()
		d.journal = nil
	}
	if s := d.store; s != nil {
		for _, ops := range s.unflushed[:d.prefix(len(s.unflushed))] {
			applyKV(d.kv, ops)
		}
		s.dead = ErrCrashed
		d.store = nil
	}
}

func (d *Disk) prefix(n int) int {
	if d.cfg.Rand == nil || n == 0 {
		return 0
	}
	return d.cfg.Rand.IntN(n + 1)
}

// FailSync makes the next and all later syncs fail, as those of a dying disk do, until the journal is opened again with err nil.
func (d *Disk) FailSync(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.syncErr = err
}

var (
	_ log.Journal = (*Journal)(nil)
	_ log.Store   = (*Store)(nil)
)

package log

import (
	"sort"

	"github.com/skeinmesh/skein/ring"
)

// slot tells where one entry is. 24 bytes an entry: 1 KiB entries in 512 MiB of files take 12 MiB.
type slot struct {
	term uint64
	file uint32 // low bits of the file's sequence number; unique among the files held
	off  uint32 // of the record
	size uint32 // of the data
	typ  EntryType
}

// tail is what the writer must know of a group to check and stage the next write: like the visible state, but ahead of it by
// what is staged and not yet durable.
type tail struct {
	last      uint64
	compacted uint64 // an entry at or below it cannot be written again
	tombstone uint64
	born      bool // false: never written to, or removed
}

// group is what the journal knows of one replica group. FileJournal.mu guards it, but for tail and snapshot.
type group struct {
	id        ring.GroupID
	hardState HardState
	birth     []byte
	tombstone uint64
	compacted Mark
	slots     []slot // entries compacted.Index+1 and on; files never go down along it
	released  uint64
	recent    []Entry // the cached suffix of the entries, ending at the last one, or empty

	tail     tail // the writer's own
	snapshot tail // tail as it was before the unit that is being staged
	unit     uint64
}

func (g *group) last() uint64 { return g.compacted.Index + uint64(len(g.slots)) }

func (g *group) state() GroupState {
	return GroupState{Group: g.id, HardState: g.hardState, Birth: g.birth, First: g.compacted.Index + 1, Last: g.last(),
		Compacted: g.compacted, Tombstone: g.tombstone}
}

// lastMark is the position of the last entry, or the compacted mark.
func (g *group) lastMark() Mark {
	if len(g.slots) == 0 {
		return g.compacted
	}
	return Mark{Index: g.last(), Term: g.slots[len(g.slots)-1].term}
}

// truncateAfter drops the entries above i.
func (g *group) truncateAfter(i uint64) {
	if i < g.last() {
		g.slots = g.slots[:i-g.compacted.Index]
		for n := len(g.recent); n > 0 && g.recent[n-1].Index > i; n-- {
			g.recent[n-1] = Entry{}
			g.recent = g.recent[:n-1]
		}
		g.released = min(g.released, i)
	}
}

// reset drops all entries and starts the log after m.
func (g *group) reset(m Mark) {
	g.compacted, g.slots, g.recent = m, nil, nil
	g.released = min(g.released, m.Index)
}

// inFile is the number of leading entries that are in files up to seq.
func (g *group) inFile(seq uint64) int {
	return sort.Search(len(g.slots), func(i int) bool { return g.slots[i].file > uint32(seq) })
}

// holds reports whether an entry in a file up to seq was not released.
func (g *group) holds(seq uint64) bool {
	n := g.inFile(seq)
	return n > 0 && g.compacted.Index+uint64(n) > g.released
}

// dropFile forgets the entries in files up to seq.
func (g *group) dropFile(seq uint64) {
	if n := g.inFile(seq); n > 0 {
		g.compacted = Mark{Index: g.compacted.Index + uint64(n), Term: g.slots[n-1].term}
		g.slots = g.slots[n:]
		for len(g.recent) > 0 && g.recent[0].Index <= g.compacted.Index {
			g.recent[0] = Entry{}
			g.recent = g.recent[1:]
		}
	}
}

// cache bounds the recent entries of all groups together: the entry that was written first leaves first, whosever it is.
type cache struct {
	limit, bytes int64
	fifo         []cached
	head         int
}

type cached struct {
	g     *group
	index uint64
	size  int64
}

// entryOverhead is what an entry takes in memory besides its data.
const entryOverhead = 96

func (c *cache) add(g *group, e Entry) {
	if n := len(g.recent); n > 0 && g.recent[n-1].Index+1 != e.Index {
		g.recent = nil
	}
	g.recent = append(g.recent, e)
	size := int64(len(e.Data)) + entryOverhead
	c.fifo = append(c.fifo, cached{g, e.Index, size})
	c.bytes += size
	for c.bytes > c.limit && c.head < len(c.fifo) {
		c.evict()
	}
}

// evict drops the oldest one. Its entry may have been replaced since; then the replacement leaves early, which costs a read.
func (c *cache) evict() {
	old := c.fifo[c.head]
	c.fifo[c.head] = cached{}
	c.head++
	c.bytes -= old.size
	for len(old.g.recent) > 0 && old.g.recent[0].Index <= old.index {
		old.g.recent[0] = Entry{}
		old.g.recent = old.g.recent[1:]
	}
	if c.head > 1024 && c.head > len(c.fifo)/2 {
		n := copy(c.fifo, c.fifo[c.head:])
		clear(c.fifo[n:])
		c.fifo, c.head = c.fifo[:n], 0
	}
}

// apply makes one staged change visible.
func (g *group) apply(o *op, c *cache) {
	switch o.kind {
	case recEntry:
		g.slots = append(g.slots, o.slot)
		if c != nil {
			c.add(g, o.entry)
		}
	case recHardState:
		g.hardState = o.hs
	case recTruncate:
		g.truncateAfter(o.entry.Index)
	case recReset:
		g.reset(Mark{Index: o.entry.Index, Term: o.entry.Term})
	case recBirth:
		g.birth = o.birth
	case recTombstone:
		g.reset(Mark{})
		g.hardState, g.birth, g.tombstone = HardState{}, nil, o.entry.Index
	}
}

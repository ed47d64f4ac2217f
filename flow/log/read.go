package log

import (
	"github.com/skeinmesh/skein/ring"
)

// Groups implements Journal.
func (j *FileJournal) Groups() []GroupState {
	j.mu.RLock()
	defer j.mu.RUnlock()
	out := make([]GroupState, 0, len(j.groups))
	for _, g := range j.groups {
		out = append(out, g.state())
	}
	return out
}

// Load implements Journal.
func (j *FileJournal) Load(id ring.GroupID) (GroupState, bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	g := j.groups[id]
	if g == nil {
		return GroupState{}, false
	}
	return g.state(), true
}

// Term implements Journal. It reads no disk.
func (j *FileJournal) Term(id ring.GroupID, i uint64) (uint64, error) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	g := j.groups[id]
	switch {
	case g == nil || i > g.last():
		return 0, ErrUnavailable
	case i < g.compacted.Index:
		return 0, ErrCompacted
	case i == g.compacted.Index:
		return g.compacted.Term, nil
	}
	return g.slots[i-g.compacted.Index-1].term, nil
}

// Entries implements Journal. Recent entries come from memory; the data of others is read, and its checksum verified. An error
// of wire.KindCorrupt means that the disk gave back something else than was written.
func (j *FileJournal) Entries(id ring.GroupID, lo, hi, maxBytes uint64) ([]Entry, error) {
	out, reads, err := j.collect(id, lo, hi, maxBytes)
	if err != nil {
		return nil, err
	}
	if len(reads) == 0 {
		j.metrics.cacheHits.Inc()
		return out, nil
	}
	j.metrics.cacheMisses.Inc()
	defer j.unpin(reads)
	for i := range reads {
		if err := readEntry(&reads[i], id, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// read is one entry that is not in memory; its file is pinned.
type read struct {
	file *journalFile
	slot slot
}

// collect decides which entries are returned, takes the cached ones, and pins the files of the others, which come first.
func (j *FileJournal) collect(id ring.GroupID, lo, hi, maxBytes uint64) ([]Entry, []read, error) {
	j.mu.RLock()
	if j.closed {
		j.mu.RUnlock()
		return nil, nil, ErrClosed
	}
	g := j.groups[id]
	if g == nil || hi > g.last()+1 || lo > hi {
		j.mu.RUnlock()
		return nil, nil, ErrUnavailable
	}
	if lo <= g.compacted.Index {
		j.mu.RUnlock()
		return nil, nil, ErrCompacted
	}
	if lo == hi {
		j.mu.RUnlock()
		return nil, nil, nil
	}
	slots := g.slots[lo-g.compacted.Index-1 : hi-g.compacted.Index-1]
	n, size := 1, uint64(slots[0].size)
	for n < len(slots) && size+uint64(slots[n].size) <= maxBytes {
		size += uint64(slots[n].size)
		n++
	}
	out := make([]Entry, n)
	cachedFrom := hi
	if len(g.recent) > 0 {
		cachedFrom = g.recent[0].Index
	}
	disk := 0
	if lo < cachedFrom {
		disk = int(min(uint64(n), cachedFrom-lo))
	}
	for i := disk; i < n; i++ {
		out[i] = g.recent[lo+uint64(i)-cachedFrom]
	}
	var reads []read
	if disk > 0 {
		reads = make([]read, disk)
		for i := range reads {
			out[i] = Entry{Index: lo + uint64(i), Term: slots[i].term, Type: slots[i].typ}
			reads[i].slot = slots[i]
		}
	}
	j.mu.RUnlock()
	if disk > 0 && !j.pin(reads) {
		return nil, nil, ErrCompacted // the files went between the two locks
	}
	return out, reads, nil
}

// pin takes a reference to each file to be read; false, and none is taken, where one is gone.
func (j *FileJournal) pin(reads []read) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || len(j.files) == 0 {
		return false
	}
	first := uint32(j.files[0].seq)
	for i := range reads {
		if reads[i].slot.file-first >= uint32(len(j.files)) {
			return false
		}
	}
	for i := range reads {
		f := j.files[reads[i].slot.file-first]
		f.refs++
		reads[i].file = f
	}
	return true
}

func (j *FileJournal) unpin(reads []read) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range reads {
		f := reads[i].file
		f.refs--
		if f.refs == 0 && f.retired {
			_ = f.f.Close()
		}
	}
}

func readEntry(r *read, id ring.GroupID, e *Entry) error {
	buf := make([]byte, recordSize+int(r.slot.size))
	if _, err := r.file.f.ReadAt(buf, int64(r.slot.off)); err != nil {
		return ioError("journal read", err)
	}
	h, ok := parseRecord(buf, r.file.nonce)
	if !ok || h.length != r.slot.size || !checkRecord(buf) || h.kind != recEntry || h.group != id || h.index != e.Index || h.term != e.Term {
		return corrupt(r.file.path, int64(r.slot.off), "entry %d of group %s does not check out", e.Index, id)
	}
	e.Data = buf[recordSize:]
	return nil
}

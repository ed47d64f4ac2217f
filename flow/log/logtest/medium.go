package logtest

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrGone is what a mount, and every file opened through it, says once its process ended or its power went.
var ErrGone = errors.New("the mount is gone")

// sector is what a disk writes as a whole or not at all, in bytes.
const sector = 512

// Medium is a disk in memory that outlives the processes that use it, one after the other, and knows what of it is durable. It promises
// as little as POSIX does: bytes are safe after a Sync of their file, names after a SyncDir of their directory, and each needs its own.
// All that it leaves to chance follows from its seed and the order of the calls. Safe for concurrent use.
type Medium struct {
	// Before, where not nil, is called before each operation that changes something, with no lock held, at times by several goroutines:
	// op is create, write, allocate, truncate, sync, syncdir, rename, remove or mkdir. It may end the mount; then the operation has no
	// effect. It is set while nothing is mounted.
	Before func(op, name string)

	mu       sync.Mutex
	rng      *rand.Rand
	mount    *Mount // the live one
	root     *inode
	pending  []*change // of names, not durable, in the order in which they were made
	room     int64
	failSync int // so many syncs until they fail; 0: they do not
}

// NewMedium returns an empty disk: a root directory.
func NewMedium(seed uint64) *Medium {
	return &Medium{rng: rand.New(rand.NewPCG(seed, 0x6d656469756d)), root: newDir(), room: -1}
}

// inode is a file or a directory. A file that lost its name lives on while it is open, or may get the name back.
type inode struct {
	names map[string]*inode // of a directory, as its readers see it; nil: a file

	now, durable []byte // of a file
	dirty        map[int64]struct{}
	abandoned    map[int64]struct{} // sectors of a failed sync: read from the cache, and never written
}

func newDir() *inode { return &inode{names: map[string]*inode{}} }

func newFile() *inode {
	return &inode{dirty: map[int64]struct{}{}, abandoned: map[int64]struct{}{}}
}

func (n *inode) isDir() bool { return n.names != nil }

// place is a name in a directory.
type place struct {
	dir  *inode
	name string
}

func (p place) get() *inode { return p.dir.names[p.name] }

func (p place) set(n *inode) {
	if n == nil {
		delete(p.dir.names, p.name)
	} else {
		p.dir.names[p.name] = n
	}
}

// change is one atomic change of names: of one place, or of two where something was renamed. Those of one directory become durable in
// their order; one that is of two directories becomes so with either, and takes along what came before it in both.
type change struct {
	places []place
	before []*inode // what they named
}

// changeLocked gives each place its new node, nil for none, in one change.
func (m *Medium) changeLocked(places []place, after ...*inode) {
	c := &change{places: places}
	for _, p := range places {
		c.before = append(c.before, p.get())
	}
	for i, p := range places {
		p.set(after[i])
	}
	m.pending = append(m.pending, c)
}

func (c *change) undo() {
	for i, p := range c.places {
		p.set(c.before[i])
	}
}

// syncDirLocked makes durable what was changed in dir.
func (m *Medium) syncDirLocked(dir *inode) {
	with := map[*inode]bool{dir: true}
	var left []*change
	for _, c := range slices.Backward(m.pending) {
		if slices.ContainsFunc(c.places, func(p place) bool { return with[p.dir] }) {
			for _, p := range c.places {
				with[p.dir] = true
			}
		} else {
			left = append(left, c)
		}
	}
	slices.Reverse(left)
	m.pending = left
}

// Mount is what a new process sees. One at a time: it panics while there is another.
func (m *Medium) Mount() *Mount {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mount != nil {
		panic("logtest: the medium is mounted already")
	}
	m.mount = &Mount{m: m, locks: map[*inode]*lock{}}
	return m.mount
}

// Kill ends the process that has it mounted, if there is one: all that it wrote stays, and its locks are free.
func (m *Medium) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endLocked()
}

// LosePower ends the process and loses at random what is not durable: of the changes of each directory's names a suffix; of each file any
// of the sectors, which then hold what they durably held, or zeros; and of its size the change, or a part of it. What is left is durable.
func (m *Medium) LosePower() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endLocked()
	m.loseNamesLocked()
	m.walkLocked("/", func(_ string, n *inode) { n.losePower(m.rng) })
}

func (m *Medium) endLocked() {
	m.mount, m.failSync = nil, 0
}

func (m *Medium) loseNamesLocked() {
	count := map[*inode]int{}
	var dirs []*inode
	for _, c := range m.pending {
		for _, p := range c.places {
			if count[p.dir] == 0 {
				dirs = append(dirs, p.dir)
			}
			count[p.dir]++
		}
	}
	keep := map[*inode]int{}
	for _, d := range dirs {
		keep[d] = m.rng.IntN(count[d] + 1)
	}
	var lost []*change
	for _, c := range m.pending {
		gone := false
		for _, p := range c.places {
			keep[p.dir]--
			gone = gone || keep[p.dir] < 0
		}
		if !gone {
			continue
		}
		lost = append(lost, c)
		for _, p := range c.places {
			keep[p.dir] = 0 // and nothing after it
		}
	}
	for _, c := range slices.Backward(lost) {
		c.undo()
	}
	m.pending = nil
}

// walkLocked calls fn for all files, in the order of their names.
func (m *Medium) walkLocked(dir string, fn func(name string, n *inode)) {
	d, err := m.findLocked(dir)
	if err != nil || !d.isDir() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		full := path.Join(dir, name)
		if n := d.names[name]; n.isDir() {
			m.walkLocked(full, fn)
		} else {
			fn(full, n)
		}
	}
}

// SetRoom bounds what all files together may hold, in bytes; below 0: nothing does. What would exceed it fails with ENOSPC as a whole.
func (m *Medium) SetRoom(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.room = bytes
}

// Used is the size of all files that have a name, in bytes.
func (m *Medium) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.usedLocked()
}

func (m *Medium) usedLocked() (sum int64) {
	m.walkLocked("/", func(_ string, n *inode) { sum += int64(len(n.now)) })
	return sum
}

// FailSync makes the n-th next sync of a file fail with EIO, and all after it until the mount ends; 0: none. As with Linux, what a failed
// sync should have written still reads well, and no later sync writes it.
func (m *Medium) FailSync(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failSync = n
}

// Patch flips the bits of xor in a byte of a file, as they rot: what was durable is no longer so.
func (m *Medium) Patch(name string, off int64, xor byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.findLocked(clean(name))
	switch {
	case err != nil:
		return pathError("patch", name, err)
	case n.isDir():
		return pathError("patch", name, unix.EISDIR)
	case off < 0 || off >= int64(len(n.now)):
		return pathError("patch", name, unix.EINVAL)
	}
	n.now[off] ^= xor
	if off < int64(len(n.durable)) {
		n.durable[off] ^= xor
	}
	return nil
}

func clean(name string) string { return path.Clean("/" + name) }

func pathError(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// findLocked returns what a clean name leads to: ENOENT or ENOTDIR where that is nothing.
func (m *Medium) findLocked(name string) (*inode, error) {
	n := m.root
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		switch {
		case part == "":
			continue
		case !n.isDir():
			return nil, unix.ENOTDIR
		case n.names[part] == nil:
			return nil, unix.ENOENT
		}
		n = n.names[part]
	}
	return n, nil
}

// placeLocked returns where a clean name is, or would be.
func (m *Medium) placeLocked(name string) (place, error) {
	dir, err := m.findLocked(path.Dir(name))
	if err == nil && !dir.isDir() {
		err = unix.ENOTDIR
	}
	return place{dir, path.Base(name)}, err
}

// touch says that bytes [from, to) were written.
func (n *inode) touch(from, to int64) {
	for s := from / sector; s*sector < to; s++ {
		n.dirty[s] = struct{}{}
		delete(n.abandoned, s)
	}
}

// resize gives the file another size. What it grows by reads as zeros.
func (n *inode) resize(size int64) {
	old := int64(len(n.now))
	n.now = sized(n.now, size)
	if size < old {
		n.touch(size, min(old, (size+sector-1)/sector*sector)) // the rest of the last sector is zeroed
	} else {
		n.touch(old, size)
	}
}

// sized cuts b, or appends zeros.
func sized(b []byte, size int64) []byte {
	if size <= int64(len(b)) {
		return b[:size]
	}
	return append(b, make([]byte, size-int64(len(b)))...)
}

// sync makes all durable that a failed one did not abandon.
func (n *inode) sync() {
	n.durable = sized(n.durable, int64(len(n.now)))
	for s := range n.dirty {
		n.keep(s)
	}
	clear(n.dirty)
}

func (n *inode) failSync() {
	maps.Copy(n.abandoned, n.dirty)
	clear(n.dirty)
}

// keep makes one sector durable as far as the durable size reaches.
func (n *inode) keep(s int64) {
	at := s * sector
	if at >= int64(len(n.durable)) || at >= int64(len(n.now)) {
		return
	}
	to := n.durable[at:min(at+sector, int64(len(n.durable)))]
	clear(to[copy(to, n.now[at:]):])
}

func (n *inode) losePower(rng *rand.Rand) {
	maps.Copy(n.dirty, n.abandoned)
	clear(n.abandoned)
	size := int64(len(n.durable))
	if a, b := min(size, int64(len(n.now))), max(size, int64(len(n.now))); a != b {
		sizes := []int64{a, b}
		if between := (a + rng.Int64N(b-a)) / sector * sector; between > a {
			sizes = append(sizes, between)
		}
		size = sizes[rng.IntN(len(sizes))]
	}
	n.durable = sized(n.durable, size)
	for _, s := range slices.Sorted(maps.Keys(n.dirty)) {
		if rng.IntN(2) == 0 {
			n.keep(s)
		}
	}
	clear(n.dirty)
	n.now = slices.Clone(n.durable)
}

package chaos

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/skeinmesh/skein/testnet/impair"
)

// trouble is one thing that can go wrong. strike lets it, for the first of the nodes, or as many as it needs; storm.putRight ends it.
// One that takes something off a disk counts on the two other copies.
type trouble struct {
	name   string
	takes  bool
	strike func(st *storm, nodes []int)
}

var troubles = []trouble{
	{"kill -9 of one", false, func(st *storm, v []int) { st.stop(v[0]); st.maybeStart(v[0]) }},
	{"kill -9 of a majority", false, func(st *storm, v []int) { st.stop(v[:3]...); st.maybeStart(v[0]) }},
	{"kill -9 of all", false, func(st *storm, v []int) { st.stop(v...); st.maybeStart(v[0]) }},
	{"SIGTERM", false, (*storm).leaves},
	{"pause", false, func(st *storm, v []int) { st.signal(v[0], syscall.SIGSTOP); st.hold(800 + st.rng.IntN(2000)) }},
	{"CPU starvation", false, func(st *storm, v []int) { st.starved[v[0]] = true; st.hold(2000) }},
	{"split", false, func(st *storm, v []int) { st.cut(v[:2], v[2:]); st.cut(v[2:], v[:2]) }},
	{"one-way cut", false, func(st *storm, v []int) {
		from, to := v[:1], v[1:]
		if st.rng.IntN(2) == 0 {
			from, to = to, from
		}
		st.cut(from, to)
	}},
	{"partial cut", false, func(st *storm, v []int) { st.cut(v[:1], v[1:2]); st.cut(v[1:2], v[:1]); st.cut(v[2:3], v[3:4]) }},
	{"impaired links", false, (*storm).badLinks},
	{"gossip cut", false, func(st *storm, v []int) { st.links.Silence(st.s.host(v[0]), 8402); st.hold(3000 + st.rng.IntN(5000)) }},
	{"slow disk", false, (*storm).slowDisk},
	{"full disk", false, (*storm).fullDisk},
	{"a node is lost and replaced", false, func(st *storm, v []int) { st.stop(v[0]); st.hold(int(2 * replaceAfter.Milliseconds())) }},
	{"drain", false, (*storm).drains},
	{"wiped disk", true, func(st *storm, v []int) { st.change(v[0], st.wipe) }},
	{"rolled-back disk", true, (*storm).rollsBack},
	{"bit flip in a segment", true, func(st *storm, v []int) {
		st.change(v[0], st.ofLargest("partitions/*/*/*.seg", func(f *os.File, size int64) error { return flip(f, size/2) }))
	}},
	{"segment cut short in the middle", true, func(st *storm, v []int) {
		st.change(v[0], st.ofLargest("partitions/*/*/*.seg", func(f *os.File, size int64) error { return f.Truncate(size / 2) }))
	}},
	{"bit flip in the journal", true, func(st *storm, v []int) {
		st.change(v[0], st.ofLargest("journal/*.journal", func(f *os.File, size int64) error { return flip(f, min(200, size/2)) }))
	}},
	{"torn tail of the journal", false, (*storm).tornTail},
}

// slowable is a skein whose disks can be slow.
var slowable = sync.OnceValues(func() (string, error) { return build("skein-slowable", "-tags", "skeinfault") })

// maybeStart starts a node again at once, as a supervisor does, or leaves that for later.
func (st *storm) maybeStart(i int) {
	if st.rng.IntN(2) == 0 {
		st.hold(st.rng.IntN(1000))
		st.start(i)
	}
}

func (st *storm) leaves(v []int) {
	if st.s.nodes[v[0]].runs() {
		st.signal(v[0], syscall.SIGCONT)
		st.signal(v[0], syscall.SIGTERM)
		st.leaving[v[0]] = true
	}
	st.hold(2000)
}

func (st *storm) cut(from, to []int) {
	for _, a := range from {
		for _, b := range to {
			st.links.Set(st.s.host(a), st.s.host(b), impair.Link{Loss: 1})
		}
	}
	st.hold(1000 + st.rng.IntN(1000))
}

func (st *storm) badLinks([]int) {
	for a := range stormNodes {
		for b := range stormNodes {
			if a != b {
				st.links.Set(st.s.host(a), st.s.host(b), badLink(st.rng))
			}
		}
	}
	st.hold(2000)
}

func (st *storm) slowDisk(v []int) {
	if err := os.WriteFile(st.slowMark(v[0]), nil, 0o600); err != nil {
		st.t.Fatal(err)
	}
	st.hold(2000 + st.rng.IntN(2000))
}

// fullDisk fills the small file system to the last block. Its node lives on, without what needs room; half of the time it is killed and has
// to start before there is room again.
func (st *storm) fullDisk([]int) {
	if !st.small {
		return
	}
	f, err := os.Create(st.ballast())
	if err != nil {
		st.t.Fatal(err)
	}
	defer f.Close()
	st.full = true
	for chunk := make([]byte, 1<<20); len(chunk) > 512; {
		if _, err := f.Write(chunk); errors.Is(err, syscall.ENOSPC) {
			chunk = chunk[:len(chunk)/2]
		} else if err != nil {
			st.t.Fatal(err)
		}
	}
	st.hold(2000 + st.rng.IntN(3000))
	if st.rng.IntN(2) == 0 {
		st.stop(smallNode)
		st.start(smallNode)
		st.hold(1000)
	}
}

// drains asks for a drain of one node through the others. It may not come about, as the others may be in trouble too.
func (st *storm) drains(v []int) {
	ctx, cancel := context.WithTimeout(st.t.Context(), 3*time.Second)
	defer cancel()
	c := st.client(v[1])
	defer c.Close()
	st.drained[v[0]] = true // or it may, and the answer was lost
	if _, err := c.Drain(ctx, nodeName(v[0]), false); err != nil {
		st.t.Logf("drain %s: %v", nodeName(v[0]), err)
	}
	st.hold(1000 + st.rng.IntN(3000))
}

// change does something to what a node has on disk, while it is down.
func (st *storm) change(i int, do func(dir string) error) {
	st.t.Helper()
	st.stop(i)
	if err := do(st.s.dirs[i]); err != nil {
		st.t.Fatal(err)
	}
	st.maybeStart(i)
}

// wipe removes all that is in a directory, but for what fills the disk.
func (st *storm) wipe(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); path != st.ballast() {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}

// rollsBack puts an older copy of a node's disk back. In between it runs, if only for a moment.
func (st *storm) rollsBack(v []int) {
	if st.full && v[0] == smallNode {
		v = v[1:] // there is no room for what is put back
	}
	old := filepath.Join(st.dir, "old")
	st.stop(v[0])
	if err := os.CopyFS(old, os.DirFS(st.s.dirs[v[0]])); err != nil {
		st.t.Fatal(err)
	}
	st.start(v[0])
	st.hold(1000 + st.rng.IntN(4000))
	st.change(v[0], func(dir string) error {
		return errors.Join(st.wipe(dir), os.CopyFS(dir, os.DirFS(old)), os.RemoveAll(old))
	})
}

// ofLargest does something to the largest file of a directory whose name matches. Where there is none there is nothing to damage.
func (st *storm) ofLargest(pattern string, do func(f *os.File, size int64) error) func(dir string) error {
	return func(dir string) error {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(paths) == 0 {
			return err
		}
		size := func(path string) int64 {
			info, err := os.Stat(path)
			if err != nil {
				return 0
			}
			return info.Size()
		}
		path := slices.MaxFunc(paths, func(a, b string) int { return int(size(a) - size(b)) })
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return errors.Join(do(f, size(path)), f.Close())
	}
}

// flip changes a bit of a byte.
func flip(f *os.File, at int64) error {
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 0x40
	_, err := f.WriteAt(b, at)
	return err
}

// tornTail leaves behind the journal's last record what a write leaves there that the power did not last for: it was never synced.
func (st *storm) tornTail(v []int) {
	torn := make([]byte, 1+st.rng.IntN(5000))
	for i := range torn {
		torn[i] = byte(1 + st.rng.IntN(255))
	}
	st.change(v[0], func(dir string) error {
		paths, err := filepath.Glob(filepath.Join(dir, "journal", "*.journal"))
		if err != nil {
			return err
		}
		for _, path := range slices.Backward(slices.Sorted(slices.Values(paths))) {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			written := len(bytes.TrimRight(data, "\x00")) // the rest of a file is zeros, made beforehand
			if written == 0 {
				continue
			}
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(torn[:min(len(torn), len(data)-written)], int64(written))
			return errors.Join(err, f.Close())
		}
		return nil
	})
}

package logtest

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
	"golang.org/x/sys/unix"
)

// Mount is a Medium as one process sees it. Its errors are those of package os until the mount ends; from then on all it says is ErrGone.
// Safe for concurrent use.
type Mount struct {
	m     *Medium
	locks map[*inode]*lock
}

var _ log.FS = (*Mount)(nil)

// look runs fn with the lock held, while the mount lives.
func (t *Mount) look(fn func() error) error {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	if t.m.mount != t {
		return ErrGone
	}
	return fn()
}

// change is look of an operation that changes something.
func (t *Mount) change(op, name string, fn func() error) error {
	if t.m.Before != nil {
		if err := t.look(func() error { return nil }); err != nil {
			return err
		}
		t.m.Before(op, name)
	}
	return t.look(func() error {
		if err := fn(); err != nil {
			return pathError(op, name, err)
		}
		return nil
	})
}

// Open implements log.FS.
func (t *Mount) Open(name string, flag int) (log.File, error) {
	f := &file{t: t, name: name, writes: flag&os.O_RDWR != 0}
	open := func() (err error) {
		f.n, err = t.openLocked(clean(name), flag)
		return err
	}
	var err error
	if flag&(os.O_CREATE|os.O_TRUNC) != 0 {
		err = t.change("create", name, open)
	} else {
		err = t.look(func() error {
			if err := open(); err != nil {
				return pathError("open", name, err)
			}
			return nil
		})
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (t *Mount) openLocked(name string, flag int) (*inode, error) {
	n, err := t.m.findLocked(name)
	if errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0 {
		at, err := t.m.placeLocked(name)
		if err != nil {
			return nil, err
		}
		n = newFile()
		t.m.changeLocked([]place{at}, n)
		return n, nil
	}
	if err != nil {
		return nil, err
	}
	if n.isDir() && flag&(os.O_RDWR|os.O_CREATE|os.O_TRUNC) != 0 {
		return nil, unix.EISDIR
	}
	if flag&os.O_TRUNC != 0 {
		n.resize(0)
	}
	return n, nil
}

// List implements log.FS.
func (t *Mount) List(dir string) (names []string, err error) {
	err = t.look(func() error {
		d, err := t.m.findLocked(clean(dir))
		if err == nil && !d.isDir() {
			err = unix.ENOTDIR
		}
		if err != nil {
			return pathError("readdir", dir, err)
		}
		names = slices.Sorted(maps.Keys(d.names))
		return nil
	})
	return names, err
}

// Exists implements log.FS.
func (t *Mount) Exists(name string) (ok bool, err error) {
	err = t.look(func() error {
		switch _, err := t.m.findLocked(clean(name)); {
		case err == nil:
			ok = true
		case !errors.Is(err, fs.ErrNotExist):
			return pathError("lstat", name, err)
		}
		return nil
	})
	return ok, err
}

// Mkdir implements log.FS.
func (t *Mount) Mkdir(dir string) error {
	return t.change("mkdir", dir, func() error {
		if clean(dir) == "/" {
			return unix.EEXIST
		}
		at, err := t.m.placeLocked(clean(dir))
		if err != nil {
			return err
		}
		if at.get() != nil {
			return unix.EEXIST
		}
		t.m.changeLocked([]place{at}, newDir())
		return nil
	})
}

// Rename implements log.FS. As with os.Rename, a directory is never replaced.
func (t *Mount) Rename(from, to string) error {
	return t.change("rename", from, func() error {
		from, to := clean(from), clean(to)
		a, err := t.m.placeLocked(from)
		if err != nil {
			return err
		}
		b, err := t.m.placeLocked(to)
		if err != nil {
			return err
		}
		switch n := a.get(); {
		case n == nil:
			return unix.ENOENT
		case to == "/" || (b.get() != nil && b.get().isDir()):
			return unix.EEXIST
		case n.isDir() && strings.HasPrefix(to, from+"/"):
			return unix.EINVAL
		case n.isDir() && b.get() != nil:
			return unix.ENOTDIR
		case a != b:
			t.m.changeLocked([]place{a, b}, nil, n)
		}
		return nil
	})
}

// Remove implements log.FS.
func (t *Mount) Remove(name string) error {
	return t.change("remove", name, func() error {
		at, err := t.m.placeLocked(clean(name))
		if err != nil {
			return err
		}
		switch n := at.get(); {
		case n == nil:
			return unix.ENOENT
		case len(n.names) > 0:
			return unix.ENOTEMPTY
		}
		t.m.changeLocked([]place{at}, nil)
		return nil
	})
}

// RemoveAll implements log.FS, by as many removals as there are names.
func (t *Mount) RemoveAll(dir string) error {
	names, err := t.List(dir)
	if err != nil && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range names {
		if err := t.RemoveAll(path.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := t.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// SyncDir implements log.FS.
func (t *Mount) SyncDir(dir string) error {
	return t.change("syncdir", dir, func() error {
		n, err := t.m.findLocked(clean(dir))
		if err != nil {
			return err
		}
		return t.m.syncLocked(n)
	})
}

// syncLocked is fsync of whatever it is.
func (m *Medium) syncLocked(n *inode) error {
	if n.isDir() {
		m.syncDirLocked(n)
		return nil
	}
	if m.failSync > 1 {
		m.failSync--
	} else if m.failSync == 1 {
		n.failSync()
		return unix.EIO
	}
	n.sync()
	return nil
}

// lock is a lock that is held.
type lock struct {
	t *Mount
	n *inode
}

// Lock implements log.FS. It ends with the mount.
func (t *Mount) Lock(name string) (io.Closer, error) {
	f, err := t.Open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	l := &lock{t: t, n: f.(*file).n}
	err = t.look(func() error {
		if t.locks[l.n] != nil {
			return wire.Errorf(wire.KindConflict, "", "%s is in use by another process", path.Dir(name))
		}
		t.locks[l.n] = l
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Close lets go of the lock.
func (l *lock) Close() error {
	return l.t.look(func() error {
		if l.t.locks[l.n] != l {
			return os.ErrClosed
		}
		delete(l.t.locks, l.n)
		return nil
	})
}

// file is an open file. The medium's lock guards closed.
type file struct {
	t      *Mount
	name   string
	n      *inode
	writes bool
	closed bool
}

// Name implements log.File.
func (f *file) Name() string { return f.name }

// Size implements log.File.
func (f *file) Size() (size int64, err error) {
	err = f.t.look(func() error {
		if f.closed {
			return pathError("stat", f.name, os.ErrClosed)
		}
		size = int64(len(f.n.now))
		return nil
	})
	return size, err
}

// ReadAt implements log.File.
func (f *file) ReadAt(b []byte, off int64) (n int, err error) {
	err = f.t.look(func() error {
		switch {
		case off < 0:
			return pathError("readat", f.name, errors.New("negative offset"))
		case len(b) == 0:
			return nil
		case f.closed:
			return pathError("read", f.name, os.ErrClosed)
		case f.n.isDir():
			return pathError("read", f.name, unix.EISDIR)
		case off < int64(len(f.n.now)):
			n = copy(b, f.n.now[off:])
		}
		if n < len(b) {
			return io.EOF
		}
		return nil
	})
	return n, err
}

// Close implements log.File.
func (f *file) Close() error {
	return f.t.look(func() error {
		if f.closed {
			return pathError("close", f.name, os.ErrClosed)
		}
		f.closed = true
		return nil
	})
}

// WriteV implements log.File. Where there is no room for all, nothing is written.
func (f *file) WriteV(bufs [][]byte, off int64) error {
	size := int64(0)
	for _, b := range bufs {
		size += int64(len(b))
	}
	if size == 0 {
		return nil
	}
	return f.t.change("write", f.name, func() error {
		switch {
		case off < 0:
			return unix.EINVAL
		case f.closed || !f.writes:
			return unix.EBADF
		}
		if err := f.growLocked(off + size); err != nil {
			return err
		}
		at := off
		for _, b := range bufs {
			at += int64(copy(f.n.now[at:], b))
		}
		f.n.touch(off, at)
		return nil
	})
}

// growLocked makes the file as large as that, where it is smaller.
func (f *file) growLocked(size int64) error {
	more := size - int64(len(f.n.now))
	if more <= 0 {
		return nil
	}
	if m := f.t.m; m.room >= 0 && m.usedLocked()+more > m.room {
		return unix.ENOSPC
	}
	f.n.resize(size)
	return nil
}

// Allocate implements log.File. The space is there as zeros.
func (f *file) Allocate(size int64) error {
	return f.t.change("allocate", f.name, func() error {
		switch {
		case f.closed || !f.writes:
			return unix.EBADF
		case size <= 0:
			return unix.EINVAL
		}
		return f.growLocked(size)
	})
}

// Truncate implements log.File.
func (f *file) Truncate(size int64) error {
	return f.t.change("truncate", f.name, func() error {
		switch {
		case f.closed:
			return os.ErrClosed
		case !f.writes || size < 0:
			return unix.EINVAL
		}
		if err := f.growLocked(size); err != nil {
			return err
		}
		if size < int64(len(f.n.now)) {
			f.n.resize(size)
		}
		return nil
	})
}

// Sync implements log.File.
func (f *file) Sync() error {
	return f.t.change("sync", f.name, func() error {
		if f.closed {
			return unix.EBADF
		}
		return f.t.m.syncLocked(f.n)
	})
}

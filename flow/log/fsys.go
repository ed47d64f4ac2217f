package log

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/skeinmesh/skein/transport/wire"
	"golang.org/x/sys/unix"
)

// FS is the file system under a journal and under segments: OS in a node. Another one lets tests take the power away at any moment
// (logtest.Medium). Safe for concurrent use. Errors are those of package os, so that errors.Is knows fs.ErrNotExist and fs.ErrExist.
//
// As POSIX has it, what a file holds is durable once Sync of the file returned, and a name once SyncDir of its directory returned.
type FS interface {
	// Open opens a file. flag is one of os.O_RDONLY and os.O_RDWR, with os.O_CREATE and os.O_TRUNC where wanted.
	Open(name string, flag int) (File, error)
	// List returns the names in a directory, sorted.
	List(dir string) ([]string, error)
	// Exists reports whether there is a file or directory of that name.
	Exists(name string) (bool, error)
	// Mkdir makes one directory.
	Mkdir(dir string) error
	// Rename moves a file or directory; a file that has the new name already is replaced in one step.
	Rename(from, to string) error
	// Remove deletes a file or an empty directory.
	Remove(name string) error
	// RemoveAll deletes a directory with all that is in it. It is no error where there is none.
	RemoveAll(dir string) error
	// SyncDir makes the names in a directory durable: those that came, those that changed and those that went.
	SyncDir(dir string) error
	// Lock takes a lock that one process at a time can have, and that ends with the process; wire.KindConflict where another has it.
	Lock(name string) (io.Closer, error)
}

// File is an open file of an FS. ReadAt, WriteV and Sync may run at the same time.
type File interface {
	io.ReaderAt
	io.Closer
	// Name is what the file was opened with.
	Name() string
	Size() (int64, error)
	// WriteV writes all buffers at off, one after the other. It may change bufs, but not what they hold.
	WriteV(bufs [][]byte, off int64) error
	// Allocate reserves the space of the first size bytes, where the file system can.
	Allocate(size int64) error
	Truncate(size int64) error
	// Sync makes what was written before the call durable.
	Sync() error
}

// OS is the file system of the operating system.
type OS struct{}

var _ FS = OS{}

// Open implements FS.
func (OS) Open(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, 0o640)
	if err != nil {
		return nil, err // not a nil *os.File in an interface
	}
	return osFile{f}, nil
}

// List implements FS.
func (OS) List(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names, err
}

// Exists implements FS.
func (OS) Exists(name string) (bool, error) {
	_, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Mkdir implements FS.
func (OS) Mkdir(dir string) error { return os.Mkdir(dir, 0o750) }

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// RemoveAll implements FS.
func (OS) RemoveAll(dir string) error { return os.RemoveAll(dir) }

// SyncDir implements FS.
func (OS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	return firstError(err, d.Close())
}

// Lock implements FS. The kernel drops the lock with the process.
func (OS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, ioError("lock", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, wire.Errorf(wire.KindConflict, "", "%s is in use by another process", filepath.Dir(name))
	}
	return f, nil
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// WriteV goes on after short writes, and respects the kernel's limit on the number of buffers.
func (f osFile) WriteV(bufs [][]byte, off int64) error {
	const iovMax = 1024
	fd := int(f.Fd())
	for len(bufs) > 0 {
		if len(bufs[0]) == 0 {
			bufs = bufs[1:]
			continue
		}
		n, err := unix.Pwritev(fd, bufs[:min(len(bufs), iovMax)], off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "pwritev", Path: f.Name(), Err: err}
		}
		off += int64(n)
		for n > 0 {
			if n < len(bufs[0]) {
				bufs[0] = bufs[0][n:]
				break
			}
			n -= len(bufs[0])
			bufs = bufs[1:]
		}
	}
	return nil
}

func (f osFile) Allocate(size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINTR) {
		return &os.PathError{Op: "fallocate", Path: f.Name(), Err: err}
	}
	return nil
}

// Sync is fdatasync: the bytes, and the size where it changed.
func (f osFile) Sync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
		return nil
	}
}

// makeDirs makes a directory, and those above it that are missing.
func makeDirs(fsys FS, dir string) error {
	err := fsys.Mkdir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if parent := filepath.Dir(dir); parent != dir {
			err = firstError(makeDirs(fsys, parent), fsys.Mkdir(dir))
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// above lists the directories that hold the name of dir, and the names of those between it and root: the nearest first, root last.
func above(dir, root string) (list []string) {
	for dir = filepath.Clean(dir); ; {
		parent := filepath.Dir(dir)
		list = append(list, parent)
		if parent == filepath.Clean(root) || parent == dir {
			return list
		}
		dir = parent
	}
}

func syncDirs(fsys FS, dirs []string) error {
	for _, dir := range dirs {
		if err := fsys.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// readFile returns all that a file holds.
func readFile(fsys FS, name string) ([]byte, error) {
	f, err := fsys.Open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	b := make([]byte, size)
	if err == nil {
		var n int
		if n, err = f.ReadAt(b, 0); errors.Is(err, io.EOF) {
			err = nil
		}
		b = b[:n]
	}
	return b, firstError(err, f.Close())
}

// replaceFile gives a file new content in one step. Where it is durable, it is so when it returns.
func replaceFile(fsys FS, name string, content []byte, durable bool) error {
	f, err := fsys.Open(name+tmpSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	err = f.WriteV([][]byte{content}, 0)
	if err == nil && durable {
		err = syncFile(f)
	}
	if err = firstError(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(name+tmpSuffix, name); err != nil || !durable {
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}

func removeIfThere(fsys FS, name string) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

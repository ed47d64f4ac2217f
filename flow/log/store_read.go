package log

import (
	"io"
	"io/fs"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// readFS lets nothing be changed, not even a lock file be made: Pebble's own read-only mode wants one.
type readFS struct{ vfs.FS }

func refuseWrite(op, name string) error {
	return &os.PathError{Op: op, Path: name, Err: fs.ErrPermission}
}

func (readFS) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, refuseWrite("create", name)
}

func (readFS) Link(_, name string) error { return refuseWrite("link", name) }

func (readFS) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	return nil, refuseWrite("open for writing", name)
}

func (readFS) Remove(name string) error { return refuseWrite("remove", name) }

func (readFS) RemoveAll(name string) error { return refuseWrite("remove", name) }

func (readFS) Rename(name, _ string) error { return refuseWrite("rename", name) }

func (readFS) ReuseForWrite(_, name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, refuseWrite("create", name)
}

func (readFS) MkdirAll(name string, _ os.FileMode) error { return refuseWrite("mkdir", name) }

func (readFS) Lock(string) (io.Closer, error) { return unlocked{}, nil }

func (f readFS) Unwrap() vfs.FS { return f.FS }

// unlocked stands for a lock that was not taken.
type unlocked struct{}

func (unlocked) Close() error { return nil }

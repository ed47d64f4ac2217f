package log

import (
	"errors"
	"fmt"

	"github.com/skeinmesh/skein/transport/wire"
	"golang.org/x/sys/unix"
)

// Errors of Journal.Entries and Journal.Term; match them with errors.Is.
var (
	// ErrCompacted: the position is at or before the group's Compacted mark.
	ErrCompacted error = &wire.Error{Kind: wire.KindNotFound, Code: "compacted", Detail: "log entry is no longer held"}
	// ErrUnavailable: the position is after the last durable entry, or the group is unknown.
	ErrUnavailable error = &wire.Error{Kind: wire.KindUnavailable, Code: "log-unavailable", Detail: "log entry is not held yet"}
	// ErrClosed: the part has been closed.
	ErrClosed error = &wire.Error{Kind: wire.KindClosed, Detail: "log is closed"}
)

// corrupt is damage at a place that was durable. path and off tell the operator, and the quarantine, where.
func corrupt(path string, off int64, format string, args ...any) error {
	return &wire.Error{Kind: wire.KindCorrupt,
		Detail: fmt.Sprintf("%s: damage at byte %d: %s", path, off, fmt.Sprintf(format, args...))}
}

// ioError wraps an error of the file system; a full disk gets its own kind and code, because it passes when space returns.
func ioError(op string, err error) error {
	if err == nil {
		return nil
	}
	if IsDiskFull(err) {
		return &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeDiskFull, Op: op, Detail: "no space left on the disk", Err: err}
	}
	return &wire.Error{Kind: wire.KindInternal, Op: op, Err: err}
}

// IsDiskFull reports whether err says that the disk, or the quota on it, is used up.
func IsDiskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || wire.CodeOf(err) == wire.CodeDiskFull
}

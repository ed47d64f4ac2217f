//go:build !skeinfault

package log

import "os"

// syncFile is fdatasync. Builds with the tag skeinfault can make it slow or fail.
func syncFile(f *os.File) error { return fdatasync(f) }

// spaceFor is asked before a new file is made. Builds with the tag skeinfault can let the disk be full.
func spaceFor(string) error { return nil }

//go:build !skeinfault

package log

// syncFile is the Sync of a journal or segment file. Builds with the tag skeinfault can make it slow or fail.
func syncFile(f File) error { return f.Sync() }

// spaceFor is asked before a new file is made. Builds with the tag skeinfault can let the disk be full.
func spaceFor(string) error { return nil }

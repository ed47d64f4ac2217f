package log

import "github.com/cockroachdb/pebble/v2/vfs"

// On puts the store on a file system of Pebble's own kind.
func (c StoreConfig) On(fs vfs.FS) StoreConfig {
	c.fs = fs
	return c
}

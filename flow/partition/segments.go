package partition

import "github.com/skeinmesh/skein/flow/batch"

// segments is what a partition asks of its segment files. Append, Close and Remove are called by the one goroutine that
// applies or installs; the rest by any.
type segments interface {
	// Append writes a batch whose base is Next.
	Append(m *batch.Meta, payload []byte) error
	// Read returns whole batches as they are in the file, the first of them holding offset from: at least one where there is
	// one, else up to maxBytes.
	Read(from uint64, maxBytes int) ([]byte, error)
	// SeekTime is the base of the first batch stamped ms or later, or Next.
	SeekTime(ms int64) (uint64, error)
	// Sync makes what was appended durable; state goes into the next Recovery, index is of the last batch it covers.
	Sync() (state []byte, index uint64, err error)
	// TrimTo removes files that hold only offsets below start, once no pin holds them.
	TrimTo(start uint64) error
	// Pin keeps all files from now until release.
	Pin() (release func())
	Next() uint64
	LastIndex() uint64
	Bytes() int64
	Close() error
	Remove() error
}

// recovery is what the store knows of segments that are opened.
type recovery struct {
	next, start, applied uint64
	synced               []byte // nil: nothing yet
}

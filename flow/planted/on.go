//go:build skeinplanted

package planted

import (
	"os"
	"sync/atomic"
)

// now is the bug that is planted: the one that SKEIN_PLANTED named when it was first asked for, or the one that a test set.
var now atomic.Pointer[Bug]

// Is tells whether a bug is planted.
func Is(b Bug) bool {
	p := now.Load()
	if p == nil {
		named := Bug(os.Getenv("SKEIN_PLANTED"))
		now.CompareAndSwap(nil, &named)
		p = now.Load()
	}
	return *p == b
}

// Set plants a bug in place of any other; "" plants none. For tests, while no node runs.
func Set(b Bug) { now.Store(&b) }

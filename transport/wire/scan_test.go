package wire

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"
)

// TestValuesOfOneByteDoNotBecomeALotOfMemory holds what a message may cost against the largest struct that is sent in lists.
func TestValuesOfOneByteDoNotBecomeALotOfMemory(t *testing.T) {
	type large struct {
		A [256]byte
		B *large
	}
	for name, value := range map[string][]byte{"nil": {0xc0}, "empty map": {0x80}, "small map": {0x81, 0xa1, 'x', 0}} {
		n := 1 << 20
		for ; ; n /= 2 {
			msg := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(n))
			msg = append(msg, bytes.Repeat(value, n)...)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := Unmarshal(msg, new([]large))
			runtime.ReadMemStats(&after)
			if spent := after.TotalAlloc - before.TotalAlloc; spent > 64<<20 {
				t.Fatalf("%d times %s took %d MiB", n, name, spent>>20)
			}
			if err == nil {
				break
			}
		}
		if n < 1<<13 {
			t.Errorf("%s: not even %d are let in", name, n)
		}
	}
}

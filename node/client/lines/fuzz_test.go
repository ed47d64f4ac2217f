package lines

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzState reads arbitrary bytes as what a run left behind.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"run":"r","stream":"s","done":{"f":3}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "r.json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := LoadState(dir, "r")
		if err != nil {
			return
		}
		if err := s.Save(dir); err != nil {
			t.Fatal(err)
		}
		if again, err := LoadState(dir, "r"); err != nil || again.Stream != s.Stream || len(again.Done) != len(s.Done) {
			t.Fatalf("%+v became %+v, %v", s, again, err)
		}
	})
}

// FuzzLines holds that the lines of a file are all of its bytes, and that a key is part of a JSON line or there is none.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"a\":{\"b\":1}}\n\n{\"a\":{\"b\":\"x\"}}"))
	key, err := FieldKey("a.b")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(b), 16)
		var all int64
		for {
			line, size, err := readLine(r)
			if err != nil {
				break
			}
			all += size
			if k, ok := key(line); ok && len(k) > 3*len(line) {
				t.Fatalf("%q has key %q", line, k)
			}
		}
		if all != int64(len(b)) {
			t.Fatalf("lines of %d bytes in %d", all, len(b))
		}
	})
}

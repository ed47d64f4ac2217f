package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzContexts reads arbitrary bytes as a contexts file.
func FuzzContexts(f *testing.F) {
	f.Add([]byte("current: a\ncontexts:\n  a:\n    servers: [127.0.0.1:8400]\n"))
	f.Add([]byte("a: &a [*a, *a]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "contexts.yaml")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := LoadContexts(path)
		if err != nil {
			if !strings.Contains(err.Error(), path) {
				t.Fatalf("%v does not name the file", err)
			}
			return
		}
		_, _, _ = c.Pick("")
	})
}

// FuzzSecret holds that a secret that is taken reads the same from its own text, and that a refusal does not repeat what was refused.
func FuzzSecret(f *testing.F) {
	f.Add(NewSecret().Text())
	f.Add(strings.Repeat("ab", SecretSize))
	f.Add(strings.Repeat("=", 100))
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSecret(text)
		if err != nil {
			if len(text) > 20 && strings.Contains(err.Error(), strings.TrimSpace(text)) {
				t.Fatalf("%v repeats the secret", err)
			}
			return
		}
		if again, err := ParseSecret(s.Text()); err != nil || len(s) != SecretSize || !bytes.Equal(again, s) {
			t.Fatalf("%q is read otherwise from its text: %v", text, err)
		}
	})
}

// FuzzUnits holds that no duration and no size is negative.
func FuzzUnits(f *testing.F) {
	for _, s := range []string{"15m", "7d", "64MiB", "1e30", "-1", "9223372036854775807d", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseDuration(s); err == nil && d < 0 {
			t.Errorf("%q is %v", s, d)
		}
		if n, err := ParseSize(s); err == nil && n < 0 {
			t.Errorf("%q is %d bytes", s, n)
		}
	})
}

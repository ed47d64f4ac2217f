package config

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// SecretSize is the length of a mesh's secret in bytes.
const SecretSize = 32

// Secret is a mesh's shared key. No formatting verb, logger or encoder prints it: they show Mask. Convert to []byte to use it.
type Secret []byte

// Mask stands wherever a secret would be printed.
const Mask = "********"

// NewSecret makes a random secret.
func NewSecret() Secret {
	s := make(Secret, SecretSize)
	rand.Read(s) // never fails (crypto/rand)
	return s
}

// Text is the form that ParseSecret reads: base64. It is the one way to see the secret, for `skein keygen`.
func (s Secret) Text() string { return base64.StdEncoding.EncodeToString(s) }

// ParseSecret reads 32 bytes written in base64 (either alphabet, padded or not) or in hex. Space around it is ignored.
func ParseSecret(text string) (Secret, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, errors.New("is empty; `skein keygen` makes one")
	}
	if b, err := hex.DecodeString(text); err == nil && len(b) == SecretSize {
		return b, nil
	}
	plain := strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "="))
	b, err := base64.RawStdEncoding.DecodeString(plain)
	if err != nil {
		return nil, fmt.Errorf("is neither base64 nor hex; `skein keygen` makes one")
	}
	if len(b) != SecretSize {
		return nil, fmt.Errorf("holds %d bytes, not %d; `skein keygen` makes one", len(b), SecretSize)
	}
	return b, nil
}

// String hides the secret.
func (s Secret) String() string {
	if len(s) == 0 {
		return ""
	}
	return Mask
}

// Format hides the secret from every verb, %x and %#v included.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// MarshalText hides the secret from JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue hides the secret from logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

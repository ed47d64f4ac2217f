package transport

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"io"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// FuzzCertificate holds that no other certificate than the one that was issued is taken for a node's.
func FuzzCertificate(f *testing.F) {
	id := ring.NodeID{1} // the same in every process of a run
	c, err := CredentialsFromSecret(id, []byte("s"))
	if err != nil {
		f.Fatal(err)
	}
	other, err := CredentialsFromSecret(id, []byte("t"))
	if err != nil {
		f.Fatal(err)
	}
	issued := c.leaves[0].cert.Certificate[0]
	f.Add(issued, []byte{})
	f.Add(other.leaves[0].cert.Certificate[0], c.cas[0].Raw)
	f.Add(c.cas[0].Raw, issued)
	f.Fuzz(func(t *testing.T, leaf, next []byte) {
		chain := [][]byte{leaf}
		if len(next) > 0 {
			chain = append(chain, next)
		}
		if got, err := c.verifyDER(chain, time.Now()); err == nil && got != id {
			t.Fatalf("taken for %s", got)
		}
	})
}

// FuzzFiles reads arbitrary bytes as the PEM files of an operator's own certificates. No file is written: with three of them per input, the
// shortening of an input that is a certificate took all the time there was.
func FuzzFiles(f *testing.F) {
	id := ring.NodeID{1}
	c, err := CredentialsFromSecret(id, []byte("s"))
	if err != nil {
		f.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.leaves[0].cert.PrivateKey)
	if err != nil {
		f.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.leaves[0].cert.Certificate[0]})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if _, err := credentialsFromPEM(id, cert, key, cert, "ca"); err != nil {
		f.Fatal(err)
	}
	f.Add(cert, key)
	f.Add(cert, []byte("-----BEGIN PRIVATE KEY-----"))
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		c, err := credentialsFromPEM(id, cert, key, cert, "ca")
		if err == nil && len(c.leaves[0].cert.Certificate) == 0 {
			t.Fatal("taken without a certificate")
		}
	})
}

// tape is a Conduit of what a peer sent.
type tape struct{ io.Reader }

func (tape) Write(p []byte) (int, error)      { return len(p), nil }
func (tape) CloseWrite() error                { return nil }
func (tape) Reset(uint64)                     {}
func (tape) StopReading(uint64)               {}
func (tape) SetReadDeadline(time.Time) error  { return nil }
func (tape) SetWriteDeadline(time.Time) error { return nil }
func (tape) Context() context.Context         { return context.Background() }

// FuzzStream holds that an opened stream gives the frames that the peer sent, in order, and ends with the first that is wrong.
func FuzzStream(f *testing.F) {
	f.Add(wire.AppendFrame(wire.AppendFrame(nil, wire.Header{Type: wire.FrameData}, []byte("x")), wire.Header{Type: wire.FrameError},
		wire.AppendError(nil, wire.Errorf(wire.KindFenced, "x", "y"))))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 8, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &stream{c: tape{}, br: bufio.NewReader(bytes.NewReader(b))}
		got := 0
		for {
			frame, err := s.Recv(context.Background())
			if err != nil {
				break
			}
			got += wire.HeaderSize + len(frame)
		}
		if got > len(b) {
			t.Fatalf("%d bytes of frames in %d", got, len(b))
		}
		if _, err := s.Recv(context.Background()); err == nil {
			t.Fatal("a stream that ended gave a frame")
		}
	})
}

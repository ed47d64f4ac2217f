package transport_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/wire"
)

func refusedBoth(t *testing.T, a, c *node, words ...string) {
	t.Helper()
	know(a, c)
	for _, n := range []*node{a, c} {
		until(t, n.name+" says why", func() bool { return n.logs.has(append([]string{"level=WARN"}, words...)...) })
	}
	more := a.dials.Load() + c.dials.Load() + 3
	until(t, "they tried several times more", func() bool { return a.dials.Load()+c.dials.Load() >= more })
	if a.Up(c.id) || c.Up(a.id) {
		t.Fatal("refused peers are up")
	}
	for _, n := range []*node{a, c} {
		if lines := n.logs.count("level=WARN"); lines > 3 {
			t.Fatalf("%s logged %d warnings:\n%s", n.name, lines, n.logs.b.String())
		}
	}
	if _, err := a.Call(within(t, 5*time.Second), c.id, wire.ClassControl, mEcho, nil); wire.KindOf(err) != wire.KindUnavailable {
		t.Fatalf("call: %v", err)
	}
}

func TestStrangersAreRefusedWithOneClearLineOnBothSides(t *testing.T) {
	clusters := func(name string) option { return func(c *transport.Config) { c.Self.ClusterID = name } }
	meshes := func(b byte) option { return func(c *transport.Config) { c.Self.MeshID = ring.MeshID{b} } }
	secret := func(s string) option {
		return func(c *transport.Config) {
			cr, err := transport.CredentialsFromSecret(c.Self.NodeID, []byte(s))
			if err != nil {
				panic(err)
			}
			c.Credentials = cr
		}
	}
	versions := func(v, min uint16) option {
		return func(c *transport.Config) { c.Self.Version, c.Self.MinVersion = v, min }
	}
	cases := []struct {
		name  string
		a, c  option
		words []string
	}{
		{"cluster", clusters("red"), clusters("blue"), []string{"cluster_id", "red", "blue"}},
		{"mesh", meshes(1), meshes(2), []string{"mesh id differs", ring.MeshID{1}.String(), ring.MeshID{2}.String()}},
		{"secret", secret("one"), secret("two"), []string{"another secret"}},
		{"no secret", secret("one"), secret(""), []string{"another secret"}},
		{"version", versions(1, 1), versions(3, 2), []string{"protocol version"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, b backend) {
				refusedBoth(t, start(t, b, "a", "", tc.a), start(t, b, "c", "", tc.c), tc.words...)
			})
		})
	}
}

func TestJoinerWithoutMeshConnectsAndIsHeldToTheMeshItLearns(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		joiner := func(c *transport.Config) { c.Self.MeshID = ring.MeshID{} }
		a, c := start(t, b, "a", ""), start(t, b, "c", "", joiner)
		meet(t, a, c)
		c.SetMesh(ring.MeshID{1})
		if _, err := c.Call(within(t, 5*time.Second), a.id, wire.ClassControl, mEcho, nil); err != nil {
			t.Fatal(err)
		}
		if !c.Up(a.id) {
			t.Fatal("learning the right mesh cost the connection")
		}
		d := start(t, b, "d", "", joiner)
		meet(t, a, d)
		d.SetMesh(ring.MeshID{9})
		until(t, "the stranger is left", func() bool { return !a.Up(d.id) && !d.Up(a.id) })
		until(t, "both say so", func() bool { return a.logs.has("mesh id differs") && d.logs.has("mesh id differs") })
	})
}

func TestSecretCanBeChangedNodeByNode(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		with := func(secret string, previous ...string) option {
			return func(c *transport.Config) { c.Credentials = creds(t, c.Self.NodeID, secret, previous...) }
		}
		old, mid, last := start(t, b, "old", "", with("s1")), start(t, b, "mid", "", with("s2", "s1")), start(t, b, "new", "", with("s2"))
		meet(t, old, mid)
		meet(t, mid, last)
	})
}

func TestRolledBackAndCopiedDisksAreRefused(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		told := make(chan string, 10)
		at := func(id ring.NodeID, count, nonce uint64) option {
			return func(c *transport.Config) {
				c.Self.NodeID, c.Self.Boot, c.Self.Nonce = id, count, nonce
				c.OnRefused = func(_ ring.NodeID, code, _ string) {
					select {
					case told <- code:
					default:
					}
				}
			}
		}
		id := ring.NewNodeID()
		a := start(t, b, "a", "")
		c := start(t, b, "c", "", at(id, 5, 1))
		meet(t, a, c)
		c.stop()
		back := start(t, b, "c", c.addr, at(id, 4, 2))
		know(a, back)
		if code := <-told; code != transport.RefusedRollback {
			t.Fatalf("rolled back disk: %s", code)
		}
		back.stop()
		for len(told) > 0 {
			<-told
		}
		again := start(t, b, "c", c.addr, at(id, 5, 7))
		know(a, again)
		if code := <-told; code != transport.RefusedRollback {
			t.Fatalf("rolled back by one start: %s", code)
		}
		again.stop()
		next := start(t, b, "c", c.addr, at(id, 6, 3))
		meet(t, a, next)
	})
}

func TestCopyOfARunningNodeIsRefusedAndTheFirstOneStays(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		for name, boot := range map[string]uint64{"older": 4, "equal": 5, "newer": 6} {
			told := make(chan string, 10)
			id := ring.NewNodeID()
			as := func(count, nonce uint64) option {
				return func(c *transport.Config) {
					c.Self.NodeID, c.Self.Boot, c.Self.Nonce = id, count, nonce
					c.OnRefused = func(_ ring.NodeID, code, _ string) {
						select {
						case told <- code:
						default:
						}
					}
				}
			}
			a, c := start(t, b, "a-"+name, ""), start(t, b, "c-"+name, "", as(5, 1))
			meet(t, a, c)
			twin := start(t, b, "d-"+name, "", as(boot, 7))
			twin.SetPeers(map[ring.NodeID]string{a.id: a.addr})
			if code := <-told; code != transport.RefusedDuplicate {
				t.Fatalf("a copy with a count that is %s: %s", name, code)
			}
			until(t, "a line says so", func() bool { return a.logs.has("runs already", "stop one of the two") })
			if !a.Up(id) {
				t.Fatal("the first one was left")
			}
		}
	})
}

func TestStartsAreRememberedOverARestartAndGivenUpIDsForEver(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		type news struct {
			id ring.NodeID
			s  transport.Start
		}
		told, refusals := make(chan news, 10), make(chan string, 10)
		id := ring.NewNodeID()
		at := func(count uint64) option {
			return func(c *transport.Config) {
				c.Self.NodeID, c.Self.Boot, c.Self.Nonce = id, count, count
				c.OnRefused = func(_ ring.NodeID, code, _ string) {
					select {
					case refusals <- code:
					default:
					}
				}
			}
		}
		a := start(t, b, "a", "", func(c *transport.Config) {
			c.OnStart = func(id ring.NodeID, _ string, s transport.Start) { told <- news{id, s} }
		})
		c := start(t, b, "c", "", at(5))
		meet(t, a, c)
		got := <-told
		if got.id != id || got.s != (transport.Start{Boot: 5, Nonce: 5}) || len(told) > 0 {
			t.Fatalf("told of %+v", got)
		}
		a.stop()
		c.stop()
		again := start(t, b, "a2", "", func(c *transport.Config) { c.Known = map[ring.NodeID]transport.Start{got.id: got.s} })
		old := start(t, b, "c", c.addr, at(3))
		know(again, old)
		if code := <-refusals; code != transport.RefusedRollback {
			t.Fatal(code)
		}
		old.stop()
		for len(refusals) > 0 {
			<-refusals
		}
		next := start(t, b, "c", c.addr, at(6))
		meet(t, again, next)
		again.GiveUp(id)
		if code := <-refusals; code != transport.RefusedGivenUp {
			t.Fatal(code)
		}
		until(t, "it is left", func() bool { return !again.Up(id) && !next.Up(again.id) })
	})
}

func TestAnotherNodeAtAKnownAddressIsNotTakenForIt(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		expected := ring.NewNodeID()
		a.SetPeers(map[ring.NodeID]string{expected: c.addr})
		until(t, "both say so", func() bool {
			return a.logs.has("looked for node", expected.String()) && c.logs.has("looked for node", expected.String())
		})
		if a.Up(expected) {
			t.Fatal("it was taken for the node")
		}
	})
}

// pki writes PEM files of an operator's own CA; uri may be empty.
func pki(t *testing.T, uri string, notAfter time.Time) (cert, key, ca string) {
	t.Helper()
	dir := t.TempDir()
	caKey, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	caTmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "own"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, caTmpl, caTmpl, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	k, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: notAfter}
	if uri != "" {
		u, _ := url.Parse(uri)
		tmpl.URIs = []*url.URL{u}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, caTmpl, k.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	kb, _ := x509.MarshalPKCS8PrivateKey(k)
	write := func(name, kind string, b []byte) string {
		f := filepath.Join(dir, name)
		if err := os.WriteFile(f, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", kb), write("ca.pem", "CERTIFICATE", caDER)
}

func TestOwnCertificatesWork(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		cert, key, ca := pki(t, "", time.Now().Add(time.Hour))
		own := func(c *transport.Config) {
			cr, err := transport.CredentialsFromFiles(c.Self.NodeID, cert, key, ca)
			if err != nil {
				t.Fatal(err)
			}
			c.Credentials = cr
		}
		meet(t, start(t, b, "a", "", own), start(t, b, "c", "", own))
	})
}

func TestExpiredAndForeignCertificatesAreRefused(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		good, goodKey, ca := pki(t, "", time.Now().Add(time.Hour))
		expired, expiredKey, expiredCA := pki(t, "", time.Now().Add(-time.Minute))
		own := func(cert, key, ca string) option {
			return func(c *transport.Config) {
				cr, err := transport.CredentialsFromFiles(c.Self.NodeID, cert, key, ca)
				if err != nil {
					t.Fatal(err)
				}
				c.Credentials = cr
			}
		}
		late := own(expired, expiredKey, expiredCA)
		a, c := start(t, b, "a", "", late), start(t, b, "c", "", late)
		know(a, c)
		until(t, "the clocks are named", func() bool { return a.logs.has("do the clocks differ") })
		if a.Up(c.id) || c.Up(a.id) {
			t.Error("a node with an expired certificate was let in")
		}
		x, y := start(t, b, "x", "", own(good, goodKey, ca)), start(t, b, "y", "")
		know(x, y)
		until(t, "foreign", func() bool { return x.logs.has("another secret") && y.logs.has("another secret") })
		if x.Up(y.id) || y.Up(x.id) {
			t.Error("a node with a foreign certificate was let in")
		}
	})
}

func TestCertificateOfAnotherNodeIsRefused(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		cert, key, ca := pki(t, "skein:"+ring.NewNodeID().String(), time.Now().Add(time.Hour))
		own := func(c *transport.Config) {
			cr, err := transport.CredentialsFromFiles(c.Self.NodeID, cert, key, ca)
			if err != nil {
				t.Fatal(err)
			}
			c.Credentials = cr
		}
		a, c := start(t, b, "a", "", own), start(t, b, "c", "", own)
		know(a, c)
		until(t, "both say so", func() bool {
			return a.logs.has("certificate of node") && c.logs.has("certificate of node")
		})
	})
}

func TestSecretGivesEveryNodeTheSameAuthority(t *testing.T) {
	for _, s := range []string{"", "x", string(make([]byte, 1000))} {
		a, c := creds(t, ring.NewNodeID(), s), creds(t, ring.NewNodeID(), s)
		if _, _, err := transport.Handshake(a, c, time.Now()); err != nil {
			t.Fatalf("secret of %d bytes: %v", len(s), err)
		}
		// Clocks that are a day off or years ahead still work.
		for _, skew := range []time.Duration{-23 * time.Hour, 5 * 365 * 24 * time.Hour} {
			if _, _, err := transport.Handshake(a, c, time.Now().Add(skew)); err != nil {
				t.Fatalf("clock off by %v: %v", skew, err)
			}
		}
	}
}

func TestNodeThatFindsItselfAtAnotherNodesAddressIsNoCopy(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		told := make(chan string, 10)
		a := start(t, b, "a", "", func(c *transport.Config) {
			c.OnRefused = func(_ ring.NodeID, code, _ string) {
				select {
				case told <- code:
				default:
				}
			}
		})
		a.SetPeers(map[ring.NodeID]string{ring.NewNodeID(): a.addr})
		if code := <-told; code != transport.RefusedNode {
			t.Fatal(code)
		}
	})
}

package transport

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// insecureSecret stands in for an empty secret: the code path is the same, but everyone knows the key.
const insecureSecret = "skein insecure mode: no secret"

// sanScheme starts the URI by which a certificate names its node.
const sanScheme = "skein:"

// Leaves are valid from a day ago, since clocks differ, for longer than any process runs.
const (
	leafBefore = 24 * time.Hour
	leafAfter  = 10 * 365 * 24 * time.Hour
)

// Credentials is what a node shows its peers and whom it trusts. Immutable; safe for concurrent use.
type Credentials struct {
	node   ring.NodeID
	leaves []leaf // the current secret's first, then the previous one's
	roots  *x509.CertPool
	cas    []*x509.Certificate
	// named: a certificate must name its node. False only with own certificates.
	named    bool
	resetKey [32]byte
}

type leaf struct {
	cert tls.Certificate
	ca   *x509.Certificate
}

// CredentialsFromSecret derives the mesh CA of secret (any bytes; empty: insecure mode) and issues this node a certificate
// from it. Peers that hold one of the previous secrets are trusted too, and shown a certificate they can verify, so that a
// secret can be changed node by node.
func CredentialsFromSecret(node ring.NodeID, secret []byte, previous ...[]byte) (*Credentials, error) {
	c := &Credentials{node: node, roots: x509.NewCertPool(), named: true}
	for i, s := range append([][]byte{secret}, previous...) {
		if len(s) == 0 {
			if i > 0 {
				continue
			}
			s = []byte(insecureSecret)
		}
		ca, key, err := deriveCA(s)
		if err != nil {
			return nil, fmt.Errorf("derive mesh CA: %w", err)
		}
		cert, err := issueLeaf(ca, key, node, time.Now())
		if err != nil {
			return nil, fmt.Errorf("issue node certificate: %w", err)
		}
		if i == 0 {
			k, err := hkdf.Key(sha256.New, s, nil, "skein stateless reset "+node.String(), len(c.resetKey))
			if err != nil {
				return nil, fmt.Errorf("derive reset key: %w", err)
			}
			c.resetKey = [32]byte(k)
		}
		c.leaves = append(c.leaves, leaf{cert: cert, ca: ca})
		c.cas = append(c.cas, ca)
		c.roots.AddCert(ca)
	}
	return c, nil
}

// CredentialsFromFiles takes PEM files of the operator's own PKI instead: every certificate that caFile's authorities
// issued is trusted. A certificate that names a node (URI "skein:<node id>") is held to it; others may speak for any node.
func CredentialsFromFiles(node ring.NodeID, certFile, keyFile, caFile string) (*Credentials, error) {
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("load node certificate: %w", err)
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("load node certificate: %w", err)
	}
	caPEM, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("load CA file: %w", err)
	}
	return credentialsFromPEM(node, certPEM, keyPEM, caPEM, caFile)
}

// credentialsFromPEM takes what is in the files; caFile is the name that an error tells.
func credentialsFromPEM(node ring.NodeID, certPEM, keyPEM, caPEM []byte, caFile string) (*Credentials, error) {
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("load node certificate: %w", err)
	}
	c := &Credentials{node: node, roots: x509.NewCertPool(), leaves: []leaf{{cert: cert}}}
	if !c.roots.AppendCertsFromPEM(caPEM) {
		return nil, fmt.Errorf("load CA file: no certificate in %s", caFile)
	}
	if _, err := rand.Read(c.resetKey[:]); err != nil {
		return nil, err
	}
	return c, nil
}

// ResetKey authenticates this node's stateless resets (RFC 9000, section 10.3). It is the same after a restart, so that
// peers learn of the restart with their next packet.
func (c *Credentials) ResetKey() [32]byte { return c.resetKey }

// ServerTLS is the accepting side's configuration: a client certificate is required and verified.
func (c *Credentials) ServerTLS() *tls.Config {
	t := c.baseTLS()
	t.ClientAuth = tls.RequireAnyClientCert
	t.ClientCAs = c.roots // tells the client which of its certificates we can verify
	t.GetCertificate = func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return c.leafForName(h.ServerName), nil }
	return t
}

// ClientTLS is the dialing side's configuration. Its server name tells the other side which CA we hold.
func (c *Credentials) ClientTLS() *tls.Config {
	t := c.baseTLS()
	t.ServerName = "mesh.skein"
	if ca := c.leaves[0].ca; ca != nil {
		t.ServerName = caName(ca)
	}
	t.GetClientCertificate = func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.leafFor(r.AcceptableCAs), nil }
	return t
}

func (c *Credentials) baseTLS() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{ALPN},
		SessionTicketsDisabled: true,
		// The chain is verified by VerifyConnection: against the mesh CAs, and by node id instead of a host name.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := c.verify(s.PeerCertificates, time.Now())
			return err
		},
	}
}

// PeerID is the node that an already verified certificate chain names; zero for none.
func (c *Credentials) PeerID(chain []*x509.Certificate) ring.NodeID {
	if len(chain) == 0 {
		return ring.NodeID{}
	}
	id, _ := sanNode(chain[0])
	return id
}

// Handshake does what TLS would, for networks without it: each side verifies the certificate that the other would show.
func Handshake(dialer, acceptor *Credentials, now time.Time) (acceptorID, dialerID ring.NodeID, err error) {
	name := ""
	if ca := dialer.leaves[0].ca; ca != nil {
		name = caName(ca)
	}
	if acceptorID, err = dialer.verifyDER(acceptor.leafForName(name).Certificate, now); err != nil {
		return acceptorID, dialerID, err
	}
	var subjects [][]byte
	for _, ca := range acceptor.cas {
		subjects = append(subjects, ca.RawSubject)
	}
	dialerID, err = acceptor.verifyDER(dialer.leafFor(subjects).Certificate, now)
	return acceptorID, dialerID, err
}

func (c *Credentials) verifyDER(der [][]byte, now time.Time) (ring.NodeID, error) {
	var chain []*x509.Certificate
	for _, d := range der {
		cert, err := x509.ParseCertificate(d)
		if err != nil {
			return ring.NodeID{}, fmt.Errorf("%w: %w", ErrCertificate, err)
		}
		chain = append(chain, cert)
	}
	return c.verify(chain, now)
}

// verify checks the chain against the trusted CAs and returns the node it names.
func (c *Credentials) verify(chain []*x509.Certificate, now time.Time) (ring.NodeID, error) {
	if len(chain) == 0 {
		return ring.NodeID{}, fmt.Errorf("%w: it shows no certificate", ErrCertificate)
	}
	opts := x509.VerifyOptions{Roots: c.roots, Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, ca := range chain[1:] {
		opts.Intermediates.AddCert(ca)
	}
	if _, err := chain[0].Verify(opts); err != nil {
		if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
			return ring.NodeID{}, ErrOtherSecret
		}
		return ring.NodeID{}, fmt.Errorf("%w (do the clocks differ?): %w", ErrCertificate, err)
	}
	id, err := sanNode(chain[0])
	if err != nil && c.named {
		return ring.NodeID{}, fmt.Errorf("%w: %w", ErrCertificate, err)
	}
	return id, nil
}

func sanNode(cert *x509.Certificate) (ring.NodeID, error) {
	for _, u := range cert.URIs {
		if s, ok := strings.CutPrefix(u.String(), sanScheme); ok {
			return ring.ParseNodeID(s)
		}
	}
	return ring.NodeID{}, errors.New("it names no node")
}

func (c *Credentials) leafForName(name string) *tls.Certificate {
	for i, l := range c.leaves {
		if l.ca != nil && caName(l.ca) == name {
			return &c.leaves[i].cert
		}
	}
	return &c.leaves[0].cert
}

func (c *Credentials) leafFor(subjects [][]byte) *tls.Certificate {
	for i, l := range c.leaves {
		for _, s := range subjects {
			if l.ca != nil && string(l.ca.RawSubject) == string(s) {
				return &c.leaves[i].cert
			}
		}
	}
	return &c.leaves[0].cert
}

// caName is the server name by which a dialer says which CA it holds. It gives nothing of the secret away.
func caName(ca *x509.Certificate) string {
	sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo)
	return "ca-" + hex.EncodeToString(sum[:8]) + ".skein"
}

// deriveCA makes the same CA from the same secret on every node. Ed25519 signatures are deterministic (RFC 8032).
func deriveCA(secret []byte) (*x509.Certificate, ed25519.PrivateKey, error) {
	seed, err := hkdf.Key(sha256.New, secret, nil, "skein mesh ca 1", ed25519.SeedSize)
	if err != nil {
		return nil, nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	pub := key.Public().(ed25519.PublicKey)
	sum := sha256.Sum256(pub)
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "skein mesh " + hex.EncodeToString(sum[:8])},
		NotBefore:             time.Unix(0, 0).UTC(),
		NotAfter:              time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
		SubjectKeyId:          sum[:20],
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, pub, key)
	if err != nil {
		return nil, nil, err
	}
	ca, err := x509.ParseCertificate(der)
	return ca, key, err
}

func issueLeaf(ca *x509.Certificate, caKey ed25519.PrivateKey, node ring.NodeID, now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return tls.Certificate{}, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		Subject:      pkix.Name{CommonName: "skein node " + node.String()},
		NotBefore:    now.Add(-leafBefore),
		NotAfter:     now.Add(leafAfter),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:         []*url.URL{{Scheme: strings.TrimSuffix(sanScheme, ":"), Opaque: node.String()}},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca, key.Public(), caKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

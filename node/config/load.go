package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Sources are what a configuration is made of. The zero value gives the defaults.
type Sources struct {
	// File is a path to a YAML or JSON file; empty: none.
	File string
	// Environ is in the form of os.Environ; variables that do not start with SKEIN_ are ignored.
	Environ []string
	// Flags are the command-line values by key name ("http.addr"), only those that were given.
	Flags map[string]string
	// Version is what complaints about keys of later versions name.
	Version string
}

// Error is one thing that is wrong with the configuration.
type Error struct {
	Origin string // "skein.yaml:3", "SKEIN_HTTP_ADDR", "--http-addr", or empty
	Key    string
	Msg    string
}

func (e *Error) Error() string {
	key := e.Key
	if k := keyNamed(key); k != nil && (e.Origin == "--"+k.Flag() || e.Origin == k.Env()) {
		key = "" // the origin names it
	}
	parts := make([]string, 0, 3)
	for _, s := range []string{e.Origin, key, e.Msg} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// Load reads all sources, resolves defaults that depend on other keys, and validates. The error joins an *Error for each
// thing that is wrong (one line each); a file that cannot be read is an *fs.PathError.
func Load(s Sources) (Config, error) {
	c := Default()
	var errs []error
	if s.File != "" {
		entries, err := readFile(s.File)
		if err != nil {
			errs = append(errs, err)
		}
		errs = append(errs, c.apply(entries)...)
	}
	env, warnings := envEntries(s.Environ)
	errs = append(errs, c.apply(env)...)
	errs = append(errs, c.apply(flagEntries(s.Flags))...)
	c.Warnings = append(c.Warnings, warnings...)
	errs = append(errs, c.refuseLater(s.Version)...)
	if err := c.resolve(s.Environ); err != nil {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		errs = append(errs, c.Validate())
		c.Warnings = append(c.Warnings, c.unreachable()...)
	}
	return c, errors.Join(errs...)
}

// apply lays one source over c. A key given twice within one source is an error.
func (c *Config) apply(entries []entry) []error {
	var errs []error
	seen := map[string]string{}
	for _, e := range entries {
		if e.err != nil {
			errs = append(errs, &Error{Origin: e.origin, Key: e.key, Msg: e.err.Error()})
			continue
		}
		k := keyNamed(e.key)
		if k == nil {
			errs = append(errs, &Error{Origin: e.origin, Key: e.key, Msg: unknownKey(e.key)})
			continue
		}
		if first, twice := seen[e.key]; twice {
			errs = append(errs, &Error{Origin: e.origin, Key: e.key, Msg: "given twice, first at " + first})
			continue
		}
		seen[e.key] = e.origin
		if err := k.set(c, e.value); err != nil {
			errs = append(errs, &Error{Origin: e.origin, Key: e.key, Msg: err.Error()})
			continue
		}
		c.origins[e.key] = e.origin
	}
	return errs
}

func keyNamed(name string) *Key {
	for i := range table {
		if table[i].Name == name {
			return &table[i]
		}
	}
	return nil
}

// notKeys are variables of other programs of the house (the client side of the command line, tests).
var notKeys = []string{"SKEIN_SERVER", "SKEIN_CONTEXT", "SKEIN_CONFIG", "SKEIN_TESTDATA"}

// envEntries picks the keys out of the environment. An unknown SKEIN_ variable is a warning where it looks like a slip, and
// ignored where it does not: orchestrators inject variables such as SKEIN_SERVICE_HOST on their own.
func envEntries(environ []string) (entries []entry, warnings []string) {
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "SKEIN_") || slices.Contains(notKeys, name) {
			continue
		}
		i := slices.IndexFunc(table, func(k Key) bool { return k.Env() == name })
		if i >= 0 {
			entries = append(entries, entry{key: table[i].Name, origin: name, value: textScalar(value)})
			continue
		}
		if near := Nearest(name, envNames()); near != "" {
			warnings = append(warnings, fmt.Sprintf("environment variable %s is not read; did you mean %s?", name, near))
		}
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
	return entries, warnings
}

func envNames() []string {
	out := make([]string, len(table))
	for i, k := range table {
		out[i] = k.Env()
	}
	return out
}

func flagEntries(flags map[string]string) []entry {
	var out []entry
	for name, value := range flags {
		origin := "--" + name
		if k := keyNamed(name); k != nil {
			origin = "--" + k.Flag()
		}
		out = append(out, entry{key: name, origin: origin, value: textScalar(value)})
	}
	slices.SortFunc(out, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
	return out
}

// refuseLater complains about keys that switch on what this version does not have: silence would look like it worked.
func (c *Config) refuseLater(version string) []error {
	var errs []error
	for _, k := range table {
		if k.Later == "" || !c.isSet(k.Name) {
			continue
		}
		if text, _ := k.get(c); text == "" {
			continue
		}
		which := "this version of skein"
		if version != "" {
			which = "skein " + version
		}
		errs = append(errs, &Error{Origin: c.Origin(k.Name), Key: k.Name, Msg: which + " does not have " + k.Later + " yet; leave the key out"})
	}
	return errs
}

// resolve fills in what depends on other keys or on the host.
func (c *Config) resolve(environ []string) error {
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return &Error{Key: "name", Msg: "not given, and the host has no name: " + err.Error()}
		}
		c.Name, _, _ = strings.Cut(host, ".")
	}
	if err := c.readSecretFile(environ); err != nil {
		return err
	}
	if len(c.Secret) > 0 || c.Insecure {
		c.openUnlessSet("quic.addr", &c.QUIC.Addr)
		c.openUnlessSet("gossip.addr", &c.Gossip.Addr)
	}
	if c.Insecure {
		c.openUnlessSet("http.addr", &c.HTTP.Addr)
	}
	for _, list := range [][]string{c.Join, c.InitialMembers} {
		for i, a := range list {
			list[i] = withPort(a, DefaultGossipPort)
		}
	}
	return nil
}

// isCredential is true of a file that systemd keeps for this service alone. It lets the service in by an access list, which the mode shows as
// rights of a group.
func isCredential(path string, environ []string) bool {
	for _, kv := range environ {
		if dir, ok := strings.CutPrefix(kv, "CREDENTIALS_DIRECTORY="); ok && dir != "" {
			return filepath.Dir(filepath.Clean(path)) == filepath.Clean(dir)
		}
	}
	return false
}

// rank orders the sources of a value: default, file, environment, flag.
func (c *Config) rank(key string) int {
	switch o := c.Origin(key); {
	case o == "default":
		return 0
	case strings.HasPrefix(o, "--"):
		return 3
	case strings.HasPrefix(o, "SKEIN_"):
		return 2
	default:
		return 1
	}
}

// DefaultGossipPort completes join addresses that name none.
const DefaultGossipPort = "8402"

func withPort(addr, port string) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), port)
}

// openUnlessSet widens a loopback default to all interfaces, keeping the port.
func (c *Config) openUnlessSet(key string, addr *string) {
	if c.isSet(key) {
		return
	}
	if _, port, err := net.SplitHostPort(*addr); err == nil {
		*addr = ":" + port
	}
}

func (c *Config) readSecretFile(environ []string) error {
	if c.secretFile == "" {
		return nil
	}
	fail := func(msg string) error {
		return &Error{Origin: c.Origin("secret_file"), Key: "secret_file", Msg: msg}
	}
	if len(c.Secret) > 0 {
		switch a, b := c.rank("secret"), c.rank("secret_file"); {
		case a > b:
			return nil // a stronger source gave the secret itself
		case a == b:
			return fail("secret is given as well (" + c.Origin("secret") + "); keep one of them")
		}
	}
	info, err := os.Stat(c.secretFile)
	if err != nil {
		return fail(err.Error())
	}
	if !info.Mode().IsRegular() || info.Size() > 4096 {
		return fail(c.secretFile + " is no small regular file")
	}
	data, err := os.ReadFile(c.secretFile)
	if err != nil {
		return fail(err.Error())
	}
	if c.Secret, err = ParseSecret(string(data)); err != nil {
		return fail(c.secretFile + " " + err.Error())
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 && !isCredential(c.secretFile, environ) {
		c.Warnings = append(c.Warnings, fmt.Sprintf("secret file %s can be read by others (mode %04o); chmod 600 it", c.secretFile, perm))
	}
	return nil
}

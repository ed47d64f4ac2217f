package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStrongestSourceWins(t *testing.T) {
	file := write(t, "skein.yaml", "http:\n  addr: 127.0.0.1:1001\nlog.level: warn\nzone: file\n")
	env := []string{"SKEIN_HTTP_ADDR=127.0.0.1:1002", "SKEIN_ZONE=env", "HOME=/x"}
	flags := map[string]string{"http.addr": "127.0.0.1:1003"}
	for _, tc := range []struct {
		src               Sources
		addr, from        string
		zone, level, lvOr string
	}{
		{Sources{}, "127.0.0.1:8400", "default", "", "info", "default"},
		{Sources{File: file}, "127.0.0.1:1001", file + ":2", "file", "warn", file + ":3"},
		{Sources{File: file, Environ: env}, "127.0.0.1:1002", "SKEIN_HTTP_ADDR", "env", "warn", file + ":3"},
		{Sources{File: file, Environ: env, Flags: flags}, "127.0.0.1:1003", "--http-addr", "env", "warn", file + ":3"},
	} {
		c, err := Load(tc.src)
		if err != nil {
			t.Fatal(err)
		}
		if c.HTTP.Addr != tc.addr || c.Origin("http.addr") != tc.from {
			t.Errorf("http.addr = %s from %s, want %s from %s", c.HTTP.Addr, c.Origin("http.addr"), tc.addr, tc.from)
		}
		if c.Zone != tc.zone || c.Log.Level != tc.level || c.Origin("log.level") != tc.lvOr {
			t.Errorf("zone %q, level %q from %q; want %q, %q from %q", c.Zone, c.Log.Level, c.Origin("log.level"), tc.zone, tc.level, tc.lvOr)
		}
	}
}

func TestOperatorsJSONLoadsUnchanged(t *testing.T) {
	const doc = `{"cluster_id": "streaming-core-01", "telemetry_interval_ms": 1000, "load_thresholds": {"cpu_max_percent": 85, "memory_max_percent": 90}, "dynamic_rebalance_enabled": true}`
	var indented bytes.Buffer
	if err := json.Indent(&indented, []byte(doc), "", "\t"); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{doc, doc + "\n", indented.String(), strings.ReplaceAll(indented.String(), "\n", "\r\n")} {
		c, err := Load(Sources{File: write(t, "skein.json", text)})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if c.ClusterID != "streaming-core-01" || c.TelemetryIntervalMS != 1000 || c.LoadThresholds != (LoadThresholds{85, 90}) || !c.DynamicRebalanceEnabled {
			t.Errorf("loaded %+v", c)
		}
	}
}

func TestComplaints(t *testing.T) {
	for _, tc := range []struct{ file, want string }{
		{"http:\n  adr: x\n", "skein.yaml:2: http.adr: unknown key, did you mean http.addr?"},
		{"htp:\n  addr: x\n", "skein.yaml:2: htp.addr: unknown key, did you mean http.addr?"},
		{"datadir: x\n", "skein.yaml:1: datadir: unknown key, did you mean data_dir?"},
		{"cpu_max_percent: 3\n", "skein.yaml:1: cpu_max_percent: unknown key, did you mean load_thresholds.cpu_max_percent?"},
		{"telemetry_interval: 3\n", "unknown key, did you mean telemetry_interval_ms?"},
		{"partitions: 3\n", "skein.yaml:1: partitions: unknown key; `skein node --config-keys` lists all"},
		{"name: 7\n", "name: wants text, got the number 7; put it in quotes"},
		{"found: \"yes\"\n", `found: wants true or false, got "yes"`},
		{"http: 8400\n", "http: is a section; it takes the keys addr, allowed_hosts"},
		{"name: [a]\n", "name: wants text, got a list"},
		{"name: {a: 1}\n", "name: wants one value, got a section"},
		{"join:\n", "join: has no value"},
		{"weight: &w 2\n", "anchors, aliases and tags are not read"},
		{"load_thresholds: {cpu_max_percent: 85.5}\n", "wants a whole number, got the number 85.5"},
		{"load_thresholds: {cpu_max_percent: 101}\n", "101 is outside 1 to 100"},
		{"replace_after: 300\n", "replace_after: wants a time span (30s, 5m, 7d), got the number 300"},
		{"replace_after: \"300\"\n", `"300" has no unit`},
		{"replace_after: 5 minutes\n", `"5 minutes" is no time span`},
		{"memory_budget: lots\n", `"lots" is no size`},
		{"raft: {election_ms: 1.5}\n", "wants milliseconds"},
		{"raft: {election_ms: 99999999999999999999}\n", "raft.election_ms: 99999999999999999999 is out of range"},
		{"raft: {election_ms: 100}\n", "100 is below 4 heartbeats of 100 ms"},
		{"name: a\nname: b\n", "skein.yaml:2:"},
		{"http.addr: 127.0.0.1:1\nhttp: {addr: \"127.0.0.1:2\"}\n", "http.addr: given twice, first at"},
		{"a: 1\n---\nb: 2\n", "skein.yaml:3: holds a second document"},
		{"{\"name\": \"a\"}\nzone: b\n", "skein.yaml:2: not YAML or JSON"}, // both, one after the other
		{"zone: b\n{\"name\": \"a\"}\n", "skein.yaml:2: not YAML or JSON"},
		{"{\"name\": \"a\"}\n---\nzone: b\n", "skein.yaml:3: holds a second document"},
		{"{\"name\": \"a\"}{\"zone\": \"b\"}", "not YAML or JSON"},
		{"{\"name\": \"a\", \"name\": \"b\"}", "skein.yaml:1:"},
		{"[{\"name\": \"a\"}]", "is neither YAML nor JSON"},
		{"just words\n", "is neither YAML nor JSON"},
		{"[server]\nport = 1\n", "not YAML or JSON"},
		{"<config/>", "is neither YAML nor JSON"},
		{"\x00\x01\x02", "is neither YAML nor JSON"},
		{"{\"name\": ", "not YAML or JSON"},
		{"kafka: {addr: \":9092\"}\n", "kafka.addr: skein 1.2.3 does not have the Kafka protocol yet"},
		{"session_ms: 60000\n", "session_ms: skein 1.2.3 does not have another time than 15 minutes for publish sessions yet; leave the key out"},
		{"initial_members: [\"a\", \"b:1\", \"A:8402\"]\n", "initial_members: names a:8402 twice"},
		{"initial_members: [\"a:x\"]\n", "HOST:PORT is wanted"},
		{"initial_members: [a]\nfound: true\n", "found: initial_members founds the mesh already"},
		{"http: {tls_cert: c.pem, tls_key: k.pem}\n", "http.tls_key: skein 1.2.3 does not have TLS on the HTTP port yet"},
		{"secret: hunter2\n", "secret: holds 5 bytes, not 32"},
		{"secret: hunter2!\n", "secret: is neither base64 nor hex"},
		{"secret: YWJj\n", "secret: holds 3 bytes, not 32"},
		{"gossip: {addr: \":8402\"}\n", "gossip.addr: :8402 is reachable from outside this host, and the mesh has no secret"},
		{"http: {addr: \"0.0.0.0:8400\"}\n", "HTTP has no access tokens"},
		{"http: {addr: \"8400\"}\n", "HOST:PORT or :PORT is wanted"},
		{"http: {addr: \"127.0.0.1:8402\"}\n", "port 8402 is http.addr's"},
		{"found: true\njoin: [a]\n", "found: makes a new mesh, and join enters another"},
		{"name: a/b\n", `name: "a/b": letters`},
		{"log: {level: loud}\n", `log.level: "loud": debug, info, warn or error`},
		{"advertise: host:8402\n", "without a port is wanted"},
	} {
		_, err := Load(Sources{File: write(t, "skein.yaml", tc.file), Version: "1.2.3"})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q:\n got %v\nwant %s", tc.file, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the complaint shows the secret: %v", err)
		}
	}
}

func TestEveryMistakeIsReported(t *testing.T) {
	_, err := Load(Sources{File: write(t, "c.yaml", "nam: a\nweight: x\n"), Environ: []string{"SKEIN_FOUND=perhaps"}, Flags: map[string]string{"log.level": "x", "raft.heartbeat_ms": "soon"}})
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Fatalf("want four lines, got:\n%v", err)
	}
}

func TestUnreadableFileIsNamed(t *testing.T) {
	_, err := Load(Sources{File: filepath.Join(t.TempDir(), "no.yaml")})
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no.yaml") {
		t.Errorf("got %v", err)
	}
	dir := t.TempDir()
	if _, err = Load(Sources{File: dir}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("of a directory: %v", err)
	}
	below := filepath.Join(write(t, "file", "name: a\n"), "skein.yaml")
	if _, err = Load(Sources{File: below}); err == nil || !strings.Contains(err.Error(), below) {
		t.Errorf("of a file below a file: %v", err)
	}
	shut := write(t, "shut.yaml", "name: a\n")
	if err := os.Chmod(shut, 0); err != nil {
		t.Fatal(err)
	}
	if _, err = Load(Sources{File: shut}); os.Geteuid() != 0 && (!errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), shut)) {
		t.Errorf("of a file without permission: %v", err)
	}
	if _, err = Load(Sources{File: write(t, "big.yaml", strings.Repeat("# x\n", 1<<19))}); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Errorf("got %v", err)
	}
}

func TestSlipsInTheEnvironmentAreWarnedOf(t *testing.T) {
	c, err := Load(Sources{Environ: []string{"SKEIN_HTTP_ADR=x", "SKEIN_SERVICE_HOST=10.0.0.1", "SKEIN_PORT_8400_TCP=tcp://x", "SKEIN_SERVER=x", "SKEIN_JOIN="}})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "did you mean SKEIN_HTTP_ADDR?") {
		t.Errorf("warnings: %q", c.Warnings)
	}
}

func TestUnits(t *testing.T) {
	c, err := Load(Sources{File: write(t, "c.yaml", `
telemetry_interval_ms: 2s
publish_deadline_ms: 9_000
replace_after: 1d12h
memory_budget: 128MiB
max_body_bytes: 1048576
join: [a, "b:9", "[::1]:7", "::1"]
`)})
	if err != nil {
		t.Fatal(err)
	}
	if c.TelemetryIntervalMS.Duration() != 2*time.Second || c.PublishDeadlineMS != 9_000 || c.ReplaceAfter != 36*time.Hour ||
		c.MemoryBudget != 128<<20 || c.MaxBodyBytes != 1<<20 {
		t.Errorf("loaded %+v", c)
	}
	if got := strings.Join(c.Join, " "); got != "a:8402 b:9 [::1]:7 [::1]:8402" {
		t.Errorf("join = %s", got)
	}
	for in, want := range map[string]int64{"0": 0, "17": 17, "1.5 GiB": 3 << 29, "64MB": 64e6, "64 kib": 64 << 10, "12b": 12} {
		if n, err := ParseSize(in); err != nil || n != want {
			t.Errorf("ParseSize(%q) = %d, %v", in, n, err)
		}
	}
	for _, in := range []string{"", "-1", "x", "NaN", "1e30", "9223372036854775808", "1.5.1MiB", "inf"} {
		if n, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d", in, n)
		}
	}
	for _, in := range []string{"", "-1s", "1", "1day", "NaNd", "d", "1e9d"} {
		if n, err := ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v", in, n)
		}
	}
}

func TestSecretsStayHidden(t *testing.T) {
	secret := NewSecret()
	c, err := Load(Sources{Environ: []string{"SKEIN_SECRET=" + secret.Text(), "SKEIN_SECRET_PREVIOUS=" + NewSecret().Text()}})
	if err != nil {
		t.Fatal(err)
	}
	if string(c.Secret) != string(secret) {
		t.Fatal("another secret was loaded")
	}
	var b bytes.Buffer
	if err := c.Print(&b); err != nil {
		t.Fatal(err)
	}
	text, _ := c.Secret.MarshalText()
	fmt.Fprintf(&b, "%v %+v %#v %s %x %q %d %s %v", c, c, c, c.Secret, c.Secret, c.Secret, c.Secret, text, c.Secret.LogValue())
	if strings.Contains(b.String(), secret.Text()) || strings.Contains(b.String(), fmt.Sprintf("%x", []byte(secret))) {
		t.Errorf("the secret shows:\n%s", b.String())
	}
	if !strings.Contains(b.String(), Mask+"'  # SKEIN_SECRET\n") && !strings.Contains(b.String(), Mask+"\"  # SKEIN_SECRET\n") && !strings.Contains(b.String(), Mask+"  # SKEIN_SECRET\n") {
		t.Errorf("the mask is missing:\n%s", b.String())
	}
	if c.QUIC.Addr != ":8401" || c.Gossip.Addr != ":8402" || c.HTTP.Addr != "127.0.0.1:8400" {
		t.Errorf("with a secret: %s %s %s", c.QUIC.Addr, c.Gossip.Addr, c.HTTP.Addr)
	}
}

func TestAdvertisingWhatNobodyListensOnIsWarnedOf(t *testing.T) {
	for _, tc := range []struct {
		advertise, secret string
		warned            bool
	}{{"10.0.0.1", "", true}, {"10.0.0.1", NewSecret().Text(), false}, {"127.0.0.1", "", false}, {"", "", false}} {
		environ := []string{"SKEIN_ADVERTISE=" + tc.advertise}
		if tc.secret != "" {
			environ = append(environ, "SKEIN_SECRET="+tc.secret)
		}
		c, err := Load(Sources{Environ: environ})
		if err != nil || tc.warned != (len(c.Warnings) == 1 && strings.Contains(c.Warnings[0], "other hosts cannot reach this node")) {
			t.Errorf("advertise %q, secret %t: %v, warnings %q", tc.advertise, tc.secret != "", err, c.Warnings)
		}
	}
}

func TestSecretFile(t *testing.T) {
	secret := NewSecret()
	path := write(t, "secret", secret.Text()+"\n")
	c, err := Load(Sources{Flags: map[string]string{"secret_file": path}})
	if err != nil || string(c.Secret) != string(secret) || len(c.Warnings) != 0 {
		t.Fatalf("%v, warnings %q", err, c.Warnings)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	c, err = Load(Sources{Flags: map[string]string{"secret_file": path}})
	if err != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "chmod 600") {
		t.Fatalf("%v, warnings %q", err, c.Warnings)
	}
	for dir, warnings := range map[string]int{filepath.Dir(path): 0, filepath.Dir(path) + "/other": 1} {
		c, err = Load(Sources{Environ: []string{"SKEIN_SECRET_FILE=" + path, "CREDENTIALS_DIRECTORY=" + dir}})
		if err != nil || len(c.Warnings) != warnings {
			t.Errorf("with systemd's credentials in %s: %v, warnings %q", dir, err, c.Warnings)
		}
	}
	other := NewSecret()
	c, err = Load(Sources{File: write(t, "c.yaml", "secret_file: "+path), Environ: []string{"SKEIN_SECRET=" + other.Text()}})
	if err != nil || string(c.Secret) != string(other) {
		t.Fatalf("the environment must beat the file: %v", err)
	}
	if _, err = Load(Sources{Environ: []string{"SKEIN_SECRET_FILE=" + path, "SKEIN_SECRET=" + other.Text()}}); err == nil {
		t.Fatal("two secrets from one source were accepted")
	}
	if _, err = Load(Sources{Flags: map[string]string{"secret_file": path + "x"}}); err == nil {
		t.Fatal("a missing secret file was accepted")
	}
}

func TestPrintedConfigLoadsToTheSame(t *testing.T) {
	c, err := Load(Sources{Flags: map[string]string{
		"name": "true", "zone": "007", "weight": "2.5", "http.allowed_hosts": "a,b:1", "join": "h", "insecure": "true",
		"replace_after": "90m", "memory_budget": "5000000", "telemetry_interval_ms": "1500ms",
	}})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := c.Print(&b); err != nil {
		t.Fatal(err)
	}
	again, err := Load(Sources{File: write(t, "c.yaml", b.String())})
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	if a, r := Changed(c, again); len(a)+len(r) > 0 {
		t.Errorf("changed by printing: %q %q\n%s", a, r, b.String())
	}
}

func TestReloadTakesOnlyItsKeys(t *testing.T) {
	before, _ := Load(Sources{})
	after, err := Load(Sources{Flags: map[string]string{"log.level": "debug", "max_body_bytes": "1MiB", "http.allowed_hosts": "x", "replace_after": "90s", "zone": "z", "weight": "3"}})
	if err != nil {
		t.Fatal(err)
	}
	reloadable, restart := Changed(before, after)
	if got := strings.Join(reloadable, " "); got != "http.allowed_hosts replace_after max_body_bytes log.level" {
		t.Errorf("reloadable: %s", got)
	}
	if got := strings.Join(restart, " "); got != "weight zone" && got != "zone weight" {
		t.Errorf("restart: %s", got)
	}
	now := Reloaded(before, after)
	if now.Log.Level != "debug" || now.MaxBodyBytes != 1<<20 || now.ReplaceAfter != 90*time.Second || now.Zone != "" || now.Weight != 1 || before.Log.Level != "info" {
		t.Errorf("reloaded to %+v", now)
	}
	if a, _ := Changed(now, after); len(a) != 0 {
		t.Errorf("left behind: %q", a)
	}
}

func TestEveryKeyHangsTogether(t *testing.T) {
	seen := map[string]bool{}
	full := Default()
	for _, k := range Keys() {
		if k.Doc == "" || seen[k.Name] || seen[k.Flag()] || seen[k.Env()] {
			t.Errorf("key %s: no doc, or a name twice", k.Name)
		}
		seen[k.Name], seen[k.Flag()], seen[k.Env()] = true, true, true
		if k.Type() == "" || !strings.Contains(Reference(), k.Env()) {
			t.Errorf("key %s is missing in the reference", k.Name)
		}
	}
	if err := func() error { full.Name = "x"; return full.Validate() }(); err != nil {
		t.Errorf("the defaults are not valid: %v", err)
	}
	Reloaded(full, full) // panics where a reloadable key has an unknown type
}

// A default that is shown, and that nothing goes by, would be untrue.
func TestKeysOfLaterVersionsAreShownWithoutAValueAndRefused(t *testing.T) {
	var b bytes.Buffer
	if err := Default().Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"http.tls_cert", "http.tls_key", "kafka.addr", "session_ms"} {
		if k, _ := Lookup(name); k.Later == "" {
			t.Errorf("%s does nothing, and is not marked", name)
		}
	}
	for _, k := range Keys() {
		if k.Later == "" {
			continue
		}
		short := k.Name[strings.LastIndexByte(k.Name, '.')+1:]
		if k.Default != "" || k.Fallback != "" || !strings.Contains(b.String(), "# "+short+":  # not available yet\n") {
			t.Errorf("%s is shown with a value:\n%s", k.Name, b.String())
		}
		_, entry, _ := strings.Cut(Reference(), "\n"+k.Name+" ")
		if entry, _, _ = strings.Cut(entry, "; "+k.Env()); !strings.Contains(entry, "; not available yet\n") || !strings.HasSuffix(entry, "default: none") {
			t.Errorf("the reference does not mark %s: %s", k.Name, entry)
		}
		_, err := Load(Sources{Flags: map[string]string{k.Name: "1000"}})
		if err == nil || !strings.Contains(err.Error(), "--"+k.Flag()+": this version of skein does not have "+k.Later+" yet") {
			t.Errorf("%s: %v", k.Name, err)
		}
	}
}

func TestNodeWithoutARoleSaysWhatToDo(t *testing.T) {
	c := Default()
	c.DataDir = filepath.Join(t.TempDir(), "none")
	err := c.CheckRole()
	if !errors.Is(err, ErrNoRole) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"--found", "--join", "skein dev", c.DataDir} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not mention %s", err, want)
		}
	}
	for _, role := range []func(*Config){
		func(c *Config) { c.Found = true },
		func(c *Config) { c.Join = []string{"a:1"} },
		func(c *Config) { c.InitialMembers = []string{"a:1"} },
		func(c *Config) {
			c.DataDir = t.TempDir()
			os.WriteFile(filepath.Join(c.DataDir, "identity"), nil, 0o600)
		},
	} {
		with := c
		role(&with)
		if err := with.CheckRole(); err != nil {
			t.Errorf("refused: %v", err)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte("http:\n  addr: a\n"))
	f.Add([]byte(`{"load_thresholds": {"cpu_max_percent": 85}, "join": ["a", ["b"]]}`))
	f.Add([]byte("a: &x [*x]\n<<: *x\n? {a: b}\n: c\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := parseFile("f", data)
		if err != nil {
			return
		}
		c := Default()
		c.apply(entries)
	})
}

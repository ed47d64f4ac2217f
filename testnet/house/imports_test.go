package house

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// arrows says what each part may import of this module, besides itself: cmd -> node -> {gossip, transport, flow} -> ring.
// transport/wire is the pure codec that all parts speak.
var arrows = []struct {
	part string
	may  []string
}{
	{"ring", nil},
	{"transport/wire", []string{"ring"}},
	{"transport", []string{"ring"}},
	{"gossip", []string{"ring", "transport/wire"}},
	{"flow", []string{"ring", "transport/wire"}},
	{"node/place", []string{"ring", "gossip/view"}}, // placement without a node around it
	{"node", []string{"ring", "gossip", "transport", "flow"}},
	{"cmd", []string{"node", "ring", "transport/wire"}},
	{"testnet", []string{"node", "ring", "gossip", "transport", "flow"}},
}

// testArrows are further arrows of test files.
var testArrows = map[string][]string{
	"transport": {"testnet/virtual"},
	"flow":      {"transport/memnet", "testnet/virtual", "testnet/check"}, // drivers are tested over the in-memory network
	"gossip":    {"transport/memnet", "testnet/virtual"},
	"node":      {"testnet/virtual"},
}

// importers says who may import an outside library; a change of library then touches one place.
var importers = []struct {
	library string
	who     []string
	why     string
}{
	{"github.com/hashicorp/memberlist", []string{"gossip"}, "gossip is behind gossip's own interface"},
	{"github.com/buraksezer/consistent", []string{"ring"}, "placement is a pure function of ring"},
	{"go.etcd.io/raft/v3", []string{"flow/replica"}, "raft's types end at the replica driver"},
	{"google.golang.org/protobuf", []string{"flow/replica"}, "raft's messages are protobufs"},
	{"github.com/cockroachdb/pebble/v2", []string{"flow/log"}, "small state is behind log.Store"},
	{"github.com/quic-go/quic-go", []string{"transport/quicnet"}, "peers are behind transport's interface"},
	{"github.com/vmihailenco/msgpack/v5", []string{"transport/wire", "flow/batch"}, "only the codecs know the encoding"},
	{"github.com/google/uuid", []string{"ring"}, "identifiers are ring's types"},
	{"github.com/dchest/siphash", []string{"ring"}, "hashing of keys is ring's"},
	{"github.com/spf13/cobra", []string{"cmd/skein"}, "flags stay in the command"},
	{"github.com/spf13/pflag", []string{"cmd/skein"}, "flags stay in the command"},
	{"github.com/goccy/go-yaml", []string{"node/config", "cmd/skein"}, "YAML is a form of the config, and of the command's output"},
	{"github.com/anishathalye/porcupine", []string{"testnet/check"}, "histories are recorded in check's own words"},
	{"github.com/klauspost/compress", []string{"flow/batch", "node/api"}, "batches are compressed once; HTTP bodies may be"},
	{"github.com/prometheus", []string{"gossip", "transport", "flow", "node", "testnet"}, "each part has its own small struct of metrics"},
	{"golang.org/x/sync", []string{"gossip", "transport", "flow", "node", "cmd", "testnet"}, "an extension of the standard library"},
	{"golang.org/x/sys", []string{"flow/log", "transport/quicnet", "node", "cmd", "testnet"}, "where the operating system is spoken to"},
}

// testLibraries may be imported by any test file, and by no other.
var testLibraries = []string{
	"pgregory.net/rapid",
	"go.uber.org/goleak",
	"github.com/cloudevents/sdk-go/v2",
	"github.com/tmaxmax/go-sse",
}

func TestImportsFollowTheArrows(t *testing.T) {
	for _, f := range sources(t) {
		if f.nested {
			continue
		}
		i := slices.IndexFunc(arrows, func(a struct {
			part string
			may  []string
		}) bool {
			return within(f.dir, a.part)
		})
		if i < 0 {
			t.Errorf("%s lies in no part of the module that the arrows name", f.path)
			continue
		}
		part := arrows[i].part
		may := append([]string{part}, arrows[i].may...)
		if f.test {
			may = append(may, testArrows[part]...)
		}
		for imported := range f.imports {
			if dir, ok := strings.CutPrefix(imported, module+"/"); ok && !within(dir, may...) {
				t.Errorf("%s imports %s: %s may import only %s", f.path, dir, part, strings.Join(may, ", "))
			}
		}
	}
}

func TestEachOutsideLibraryHasItsImporter(t *testing.T) {
	used := map[string]bool{}
	for _, f := range sources(t) {
		if f.nested {
			continue
		}
		for imported := range f.imports {
			if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") || within(imported, module) {
				continue
			}
			if i := slices.IndexFunc(testLibraries, func(l string) bool { return within(imported, l) }); i >= 0 {
				used[testLibraries[i]] = true
				if !f.test {
					t.Errorf("%s imports %s, which is for tests", f.path, imported)
				}
				continue
			}
			found := false
			for _, l := range importers {
				if !within(imported, l.library) {
					continue
				}
				found, used[l.library] = true, true
				if !within(f.dir, l.who...) {
					t.Errorf("%s imports %s; only %s may: %s", f.path, imported, strings.Join(l.who, ", "), l.why)
				}
			}
			if !found {
				t.Errorf("%s imports %s, which is not in the table of outside libraries: add it there with its one importer", f.path, imported)
			}
		}
	}
	for _, l := range importers {
		if !used[l.library] {
			t.Errorf("nobody imports %s: remove its row", l.library)
		}
	}
	for _, l := range testLibraries {
		if !used[l] {
			t.Errorf("no test imports %s: remove its line", l)
		}
	}
}

// pure packages decide and do nothing else: everything they need is a parameter, so that a simulation can run them and a seed replays
// them.
var pure = []string{
	"ring", "gossip/view", "flow/credit", "flow/batch", "flow/backup", "flow/catalog", "transport/wire", "node/ops", "node/place",
	"testnet/check", "testnet/orders",
}

var impureImports = []string{
	"net", "os", "io/ioutil", "log", "syscall", "plugin", "math/rand", "crypto/rand", "runtime", "golang.org/x/sys",
}

// impureCalls are names that reach out of an otherwise harmless package.
var impureCalls = map[string][]string{
	"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
}

// seeded are the names of math/rand/v2 that do not touch the process's own generator.
var seeded = []string{"Rand", "Source", "New", "NewPCG", "PCG", "NewChaCha8", "ChaCha8", "NewZipf", "Zipf"}

func TestPurePackagesReachForNothing(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range sources(t) {
		if f.test || !slices.Contains(pure, f.dir) {
			continue
		}
		seen[f.dir] = true
		for imported := range f.imports {
			if imported != "math/rand/v2" && within(imported, impureImports...) {
				t.Errorf("%s imports %s: %s is pure", f.path, imported, f.dir)
			}
		}
		for imported, names := range impureCalls {
			f.uses(imported, func(name string, at token.Pos) {
				if slices.Contains(names, name) {
					t.Errorf("%s uses %s.%s: %s is pure, the time is a parameter", f.at(at), imported, name, f.dir)
				}
			})
		}
		f.uses("math/rand/v2", func(name string, at token.Pos) {
			if !slices.Contains(seeded, name) {
				t.Errorf("%s uses rand.%s: %s is pure, the generator is a parameter", f.at(at), name, f.dir)
			}
		})
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s starts a goroutine: %s is pure", f.at(g.Pos()), f.dir)
			}
			return true
		})
	}
	for _, dir := range pure {
		if !seen[dir] {
			t.Errorf("%s is not there: remove it from the pure packages", dir)
		}
	}
}

// globals are names that change or use what belongs to the whole process; parts are given a logger, a registry and a mux instead.
var globals = []struct {
	imported string
	names    []string // nil: the whole package
	where    []string // folders that may
	why      string
}{
	{"math/rand", nil, nil, "math/rand/v2 with an injected generator takes its place"},
	{"log", []string{"Print", "Printf", "Println", "Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln", "Default", "SetOutput"}, nil,
		"parts are given a *slog.Logger"},
	{"log/slog", []string{"SetDefault", "Info", "Warn", "Error", "Debug", "Log"}, []string{"cmd"}, "parts are given a *slog.Logger"},
	{"os", []string{"Exit"}, []string{"cmd", "testnet"}, "only a command ends the process"},
	{"net/http", []string{"DefaultServeMux", "HandleFunc", "Handle", "DefaultClient", "Get", "Post"}, nil, "servers and clients are built, with limits"},
	{"github.com/prometheus/client_golang/prometheus", []string{"MustRegister", "Register", "DefaultRegisterer", "DefaultGatherer"}, nil,
		"parts are given a registerer"},
	{"net/http/pprof", nil, []string{"node"}, "importing it changes the default mux"},
	{"unsafe", nil, []string{"flow/batch"}, "only the batch reader gives out views of its bytes as strings"},
}

func TestNoPartUsesWhatBelongsToTheProcess(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || f.nested {
			continue
		}
		for _, g := range globals {
			if within(f.dir, g.where...) {
				continue
			}
			if _, ok := f.imports[g.imported]; ok && g.names == nil {
				t.Errorf("%s imports %s: %s", f.path, g.imported, g.why)
			}
			f.uses(g.imported, func(name string, at token.Pos) {
				if slices.Contains(g.names, name) {
					t.Errorf("%s uses %s.%s: %s", f.at(at), g.imported, name, g.why)
				}
			})
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s has an init function: constructors do what has to be done", f.at(fn.Pos()))
			}
		}
	}
}

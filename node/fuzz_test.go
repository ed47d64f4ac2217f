package node

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// FuzzIdentity reads arbitrary bytes as node.json: refused and left as they are, or the node's identity, and one start more.
func FuzzIdentity(f *testing.F) {
	f.Add([]byte(`{"format":1,"node_id":"6f1e8f8e-3a53-4a7c-9d0e-0a4f0e7f9a11","cluster_id":"c","boot":3,"nonce":4}`))
	f.Add([]byte(`{"format":1,"node_id":"00000000-0000-0000-0000-000000000000","cluster_id":"c"}`))
	f.Add([]byte(`{"format":99,"node_id":"6f1e8f8e-3a53-4a7c-9d0e-0a4f0e7f9a11","cluster_id":"c","founded":{"members":null}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, identityFile)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		d := &dataDir{path: dir}
		if err := d.load("c"); err != nil {
			if now, _ := os.ReadFile(path); d.id.GivenUp == nil && !bytes.Equal(now, raw) {
				t.Fatalf("refused (%v) and changed: %q became %q", err, raw, now)
			}
			return
		}
		again := &dataDir{path: dir}
		if err := again.load("c"); err != nil || again.id.NodeID != d.id.NodeID || again.id.Boot != d.id.Boot+1 || d.id.NodeID.IsZero() {
			t.Fatalf("%q: %+v became %+v, %v", raw, d.id, again.id, err)
		}
	})
}

// FuzzStarts reads arbitrary bytes as what is remembered of other nodes: set aside, or read back as they are written.
func FuzzStarts(f *testing.F) {
	f.Add([]byte(`{"format":1,"peers":{"6f1e8f8e-3a53-4a7c-9d0e-0a4f0e7f9a11":{"name":"n","boot":3,"given_up":true,"seen":"2026-01-01T00:00:00Z"}}}`))
	f.Add([]byte(`{"format":1,"peers":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, startsFile), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := openStarts(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		s.giveUp(ring.NodeID{1})
		if err := s.write(); err != nil {
			t.Fatal(err)
		}
		again, err := openStarts(dir, slog.New(slog.DiscardHandler))
		if err != nil || len(again.known) != len(s.known) || !again.isGivenUp(ring.NodeID{1}) {
			t.Fatalf("%+v became %+v, %v", s.known, again.known, err)
		}
	})
}

// FuzzMessages holds that what nodes ask each other about operations and founding is written and read back the same, and that a founding
// record that was not made with the secret is refused.
func FuzzMessages(f *testing.F) {
	for _, v := range []any{&opsQuestion{Op: opsAsk, ID: "x"}, &opsAnswer{Operations: []ops.Operation{{ID: "x"}}, Reports: []ops.Report{{}}},
		&membersRequest{Standing: &standing{Name: "n", Members: []string{"a"}}}, &membersRequest{Record: &foundingRecord{Shards: [][]int{{0}}}}, &standing{At: -1}} {
		b, err := wire.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4<<10 {
			return // nothing new, and what is written may have more values than may be read
		}
		for _, pair := range [][2]any{{new(opsQuestion), new(opsQuestion)}, {new(opsAnswer), new(opsAnswer)}, {new(standing), new(standing)},
			{new(membersRequest), new(membersRequest)}} {
			if wire.Unmarshal(b, pair[0]) != nil {
				continue
			}
			once, err := wire.Marshal(pair[0])
			if err == nil {
				err = wire.Unmarshal(once, pair[1])
			}
			if err != nil {
				t.Fatalf("%T: %v", pair[0], err)
			}
			if twice, err := wire.Marshal(pair[1]); err != nil || !bytes.Equal(once, twice) {
				t.Fatalf("%T: %x became %x, %v", pair[0], once, twice, err)
			}
			if req, ok := pair[0].(*membersRequest); ok && req.Record != nil && req.Record.check([][]byte{make([]byte, 32)}, "c") == nil {
				t.Fatalf("a forged founding record passes: %+v", req.Record)
			}
		}
	})
}

package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
)

const (
	startsFile   = "peers.json"
	startsFormat = 1
	// maxStarts bounds the nodes that are remembered; the one that was seen longest ago is forgotten first, but one that was given up only
	// where there is no other: its disk may come back at any time.
	maxStarts = 4096
	// seenEvery is how often it is written down that a node is still there.
	seenEvery = time.Hour
	// startsRetry is how long a file that could not be written waits for the next try.
	startsRetry = time.Second
)

// peerStarts remembers, over restarts, which start of each other node was seen last, and which node ids were given up. A disk that was put
// back from a copy is told by it. It is written soon after each change and not before the handshake goes on: what a crash can take is the
// last moment's news, and nobody rolls a disk back in a moment. Safe for concurrent use; run writes.
type peerStarts struct {
	path  string
	log   *slog.Logger
	dirty chan struct{}

	mu    sync.Mutex
	known map[ring.NodeID]peerStart
}

// peerStart is one node's latest start.
type peerStart struct {
	Name    string    `json:"name,omitempty"`
	Boot    uint64    `json:"boot,omitempty"`
	Nonce   uint64    `json:"nonce,omitempty"`
	GivenUp bool      `json:"given_up,omitempty"`
	Gossip  string    `json:"gossip,omitempty"` // where it gossiped
	Seen    time.Time `json:"seen"`
}

type startsDoc struct {
	Format int                       `json:"format"`
	Peers  map[ring.NodeID]peerStart `json:"peers"`
}

// openStarts reads the file. One that cannot be read is set aside under another name: this node then remembers nothing, and says so.
func openStarts(dataDir string, logger *slog.Logger) (*peerStarts, error) {
	s := &peerStarts{path: filepath.Join(dataDir, startsFile), log: logger, dirty: make(chan struct{}, 1), known: map[ring.NodeID]peerStart{}}
	raw, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("data_dir: %w", err)
	}
	var doc startsDoc
	if err := json.Unmarshal(raw, &doc); err != nil || doc.Format != startsFormat {
		logger.Warn("what was remembered of other nodes' starts cannot be read and is set aside", "file", s.path, "format", doc.Format, "err", err)
		return s, os.Rename(s.path, s.path+".damaged")
	}
	if doc.Peers != nil {
		s.known = doc.Peers
	}
	s.boundLocked()
	return s, nil
}

// transport is what the transport holds peers' hellos against.
func (s *peerStarts) transport() map[ring.NodeID]transport.Start {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[ring.NodeID]transport.Start, len(s.known))
	for id, p := range s.known {
		out[id] = transport.Start{Boot: p.Boot, Nonce: p.Nonce}
		if p.GivenUp {
			out[id] = transport.GivenUp
		}
	}
	return out
}

// others lists the nodes that were met and may come back.
func (s *peerStarts) others() []ring.NodeID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []ring.NodeID
	for id, p := range s.known {
		if !p.GivenUp {
			out = append(out, id)
		}
	}
	return out
}

// saw notes a peer's start.
func (s *peerStarts) saw(id ring.NodeID, name string, st transport.Start) {
	s.mu.Lock()
	at := s.known[id].Gossip
	s.mu.Unlock()
	s.put(id, peerStart{Name: name, Boot: st.Boot, Nonce: st.Nonce, Gossip: at, Seen: time.Now().UTC()})
}

// there notes that a node that was met is there, and where it gossips.
func (s *peerStarts) there(id ring.NodeID, gossip string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.known[id]; ok && !p.GivenUp && (p.Gossip != gossip || now.Sub(p.Seen) >= seenEvery) {
		p.Gossip, p.Seen = gossip, now.UTC()
		s.known[id] = p
		wakeUp(s.dirty)
	}
}

// addresses are where other nodes gossiped.
func (s *peerStarts) addresses() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, p := range s.known {
		if p.Gossip != "" && !p.GivenUp && !slices.Contains(out, p.Gossip) {
			out = append(out, p.Gossip)
		}
	}
	return out
}

// giveUp notes that a node id is not to be used any more; false when that was known.
func (s *peerStarts) giveUp(id ring.NodeID) bool {
	return s.put(id, peerStart{Name: s.name(id), GivenUp: true, Seen: time.Now().UTC()})
}

func (s *peerStarts) put(id ring.NodeID, p peerStart) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[id].GivenUp {
		return false
	}
	s.known[id] = p
	s.boundLocked()
	wakeUp(s.dirty)
	return true
}

// isGivenUp reports whether nobody may use the node id any more.
func (s *peerStarts) isGivenUp(id ring.NodeID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[id].GivenUp
}

// name is what a node called itself when it was last met.
func (s *peerStarts) name(id ring.NodeID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[id].Name
}

func (s *peerStarts) boundLocked() {
	over := len(s.known) - maxStarts
	if over <= 0 {
		return
	}
	worth := func(id ring.NodeID) int {
		if s.known[id].GivenUp {
			return 1
		}
		return 0
	}
	ids := slices.SortedFunc(maps.Keys(s.known), func(a, b ring.NodeID) int {
		return cmp.Or(cmp.Compare(worth(a), worth(b)), s.known[a].Seen.Compare(s.known[b].Seen), a.Compare(b))
	})
	for _, id := range ids[:over] {
		delete(s.known, id)
	}
}

// run writes what changes, until ctx ends; then what is left.
func (s *peerStarts) run(ctx context.Context) error {
	for {
		select {
		case <-s.dirty:
		case <-ctx.Done():
			select {
			case <-s.dirty:
				return s.write()
			default:
				return nil
			}
		}
		if err := s.write(); err != nil {
			s.log.Warn("what is remembered of other nodes' starts cannot be written; trying again", "err", err)
			wakeUp(s.dirty)
			select {
			case <-time.After(startsRetry):
			case <-ctx.Done():
			}
		}
	}
}

// write replaces the file, durably.
func (s *peerStarts) write() error {
	s.mu.Lock()
	doc := startsDoc{Format: startsFormat, Peers: maps.Clone(s.known)}
	s.mu.Unlock()
	raw, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return err
	}
	return replaceFile(s.path, append(raw, '\n'))
}

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// A node gives up its id when what it has on disk may not be used: an older copy of itself, or a damaged journal. Votes that it gave and
// events that it acknowledged may be missing there. It notes that in node.json, stops, and at the next start sets everything aside, takes
// a new id and comes back empty; gossip tells the others which id it had, so that they make its copies anew at once and let nobody use
// that id again. Nothing is deleted.

// ErrGaveUp ends Run, and New, of a node that gave up its node id: make it anew with the same configuration, and it is an empty member of
// the mesh.
var ErrGaveUp = errors.New("this node gives up its node id")

// quarantineDir holds, below the data directory, one directory for each node id that was given up.
const quarantineDir = "quarantine"

// maxFormer bounds the given up ids that are remembered in node.json.
const maxFormer = 16

// formerID is a node id that this node had.
type formerID struct {
	ID     ring.NodeID `json:"node_id"`
	At     time.Time   `json:"at"`
	Reason string      `json:"reason"` // one of the words below
	Detail string      `json:"detail"`
	Dir    string      `json:"dir"` // of what it had, below quarantineDir
}

// Why node ids are given up: also the ends of directory names.
const (
	reasonRolledBack     = "rolled-back"
	reasonRefused        = "refused" // the mesh gave the id up before, or an operator declared the node lost
	reasonDamagedJournal = "damaged-journal"
	reasonDamagedState   = "damaged-state"
)

// giveUp notes that this directory's node id is given up; the next opening sets its data aside.
func (d *dataDir) giveUp(reason, detail string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.id.GivenUp != nil {
		return nil
	}
	at := time.Now().UTC().Truncate(time.Second)
	to := d.id
	to.GivenUp = &formerID{ID: d.id.NodeID, At: at, Reason: reason, Detail: detail, Dir: at.Format("20060102T150405Z") + "-" + reason}
	return d.changeLocked(to)
}

// setAside moves everything into quarantine and gives the directory a new identity. Cut short anywhere, it is finished at the next start:
// the new identity is written last.
func (d *dataDir) setAside() error {
	g := d.id.GivenUp
	dir := filepath.Join(d.path, quarantineDir, g.Dir)
	if err := makeDir(dir); err != nil {
		return fmt.Errorf("data_dir: set aside: %w", err)
	}
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("data_dir: set aside: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case "lock", identityFile, identityFile + newSuffix, startsFile, startsFile + newSuffix, quarantineDir:
			continue
		}
		if err := os.Rename(filepath.Join(d.path, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("data_dir: set aside: %w", err)
		}
	}
	raw, err := json.MarshalIndent(d.id, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(dir, identityFile), append(raw, '\n')); err != nil {
		return fmt.Errorf("data_dir: set aside: %w", err)
	}
	if err := errors.Join(syncDir(filepath.Join(d.path, quarantineDir)), syncDir(d.path)); err != nil {
		return fmt.Errorf("data_dir: set aside: %w", err)
	}
	former := append([]formerID{*g}, d.id.Former...)
	d.id = identity{Format: d.id.Format, NodeID: ring.NewNodeID(), MeshID: d.id.MeshID, ClusterID: d.id.ClusterID, Marks: d.id.Marks, Lost: d.id.Lost,
		Former: former[:min(len(former), maxFormer)]}
	return nil // load saves it
}

// former are the ids that the node announces as given up: those that an operator declared lost, and its own former ones.
func (d *dataDir) former() (out [view.MaxFormer]ring.NodeID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ids := slices.Clone(d.id.Lost)
	for _, f := range d.id.Former {
		ids = append(ids, f.ID)
	}
	copy(out[:], ids)
	return out
}

// kept lists the given up ids whose data is still in quarantine, newest first, and the bytes that it takes.
func (d *dataDir) kept() (ids []formerID, bytes int64) {
	d.mu.Lock()
	former := slices.Clone(d.id.Former)
	d.mu.Unlock()
	for _, f := range former {
		if _, err := os.Stat(filepath.Join(d.path, quarantineDir, f.Dir)); err == nil {
			ids = append(ids, f)
		}
	}
	_ = filepath.WalkDir(filepath.Join(d.path, quarantineDir), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return nil // what cannot be looked at is not counted
	})
	return ids, bytes
}

// describe is a line for people.
func (f formerID) describe(dataDir string) string {
	return fmt.Sprintf("this node gave up its former node id %s at %s (%s) and came back empty; what it had is in %s: remove that when nothing of it is needed",
		f.ID, f.At.Format(time.RFC3339), strings.ReplaceAll(f.Reason, "-", " "), filepath.Join(dataDir, quarantineDir, f.Dir))
}

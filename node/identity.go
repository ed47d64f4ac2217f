package node

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

const identityFile = "node.json"

// identity is what a data directory says about its node. It is rewritten, with a sync, at every start.
type identity struct {
	// Format is the mesh's floor: the version that a build must know to read what may be in this directory. It starts as the oldest,
	// rises when the mesh begins to use what a newer version brought (RequireVersion), and never sinks.
	Format    wire.Version `json:"format"`
	NodeID    ring.NodeID  `json:"node_id"`
	MeshID    ring.MeshID  `json:"mesh_id"` // zero until the node founded or joined a mesh
	ClusterID string       `json:"cluster_id"`
	// Founding: the mesh id was chosen here, and the catalog may not be complete yet.
	Founding bool `json:"founding,omitempty"`
	// Founded is the record of a founding by a list of members that names this node.
	Founded *foundingRecord `json:"founded,omitempty"`
	// GivenUp: the node id is not to be used any more, and its data is set aside at the next start. Former are the ids given up, newest
	// first.
	GivenUp *formerID  `json:"given_up,omitempty"`
	Former  []formerID `json:"former,omitempty"`
	// Lost are other nodes that an operator declared lost for good (Recover), newest first.
	Lost []ring.NodeID `json:"lost,omitempty"`
	// Boot counts the starts on this directory; a peer that remembers a higher count knows that an older copy was put back.
	Boot  uint64 `json:"boot"`
	Nonce uint64 `json:"nonce"`
	// Marks are what operators set on this node.
	Marks marks `json:"marks,omitzero"`
}

// dataDir is the opened, locked data directory. The node id, the cluster id, boot and nonce stay as they were at opening; all else changes
// under mu, since gossip tells of it while the node already runs.
type dataDir struct {
	path string
	lock *os.File

	mu sync.Mutex // also held while the file is written: the file changes in the order in which memory does
	id identity
}

// openDataDir locks the directory, reads or makes the identity, and counts this start.
func openDataDir(path, clusterID string) (*dataDir, error) {
	if err := makeDir(path); err != nil {
		return nil, fmt.Errorf("data_dir: %w", err)
	}
	lock, err := lockFile(filepath.Join(path, "lock"))
	if err != nil {
		return nil, fmt.Errorf("data_dir: %s is in use by another node: stop it, or give this one its own directory: %w", path, err)
	}
	d := &dataDir{path: path, lock: lock}
	if err := d.load(clusterID); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return d, nil
}

func (d *dataDir) load(clusterID string) error {
	raw, err := os.ReadFile(filepath.Join(d.path, identityFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := refuseForeignFiles(d.path); err != nil {
			return err
		}
		d.id = identity{Format: wire.Oldest, NodeID: ring.NewNodeID(), ClusterID: clusterID}
	case err != nil:
		return fmt.Errorf("data_dir: %w", err)
	default:
		if err := json.Unmarshal(raw, &d.id); err != nil || d.id.NodeID.IsZero() {
			return fmt.Errorf("data_dir: %s is damaged (%v): restore it, or set the directory aside and let the node join as a new one",
				filepath.Join(d.path, identityFile), err)
		}
		if err := d.checkFormat(); err != nil {
			return err
		}
		if d.id.ClusterID != clusterID {
			return fmt.Errorf("data_dir: %s belongs to cluster_id %q, the configuration says %q: use the right directory or set cluster_id back",
				d.path, d.id.ClusterID, clusterID)
		}
	}
	if d.id.GivenUp != nil {
		if err := d.setAside(); err != nil {
			return err
		}
	}
	d.id.Boot++
	var nonce [8]byte
	_, _ = rand.Read(nonce[:]) // never fails
	d.id.Nonce = binary.LittleEndian.Uint64(nonce[:])
	return save(d.path, d.id)
}

// checkFormat refuses a directory that another build must read.
func (d *dataDir) checkFormat() error {
	if d.id.Format < wire.Oldest || d.id.Format > wire.Newest {
		return fmt.Errorf("data_dir: %s is of format %d; this build (%s) reads formats %d to %d, and left it as it is: start the newer build again, "+
			"or set the directory aside and let the node join as a new one", d.path, d.id.Format, Version, wire.Oldest, wire.Newest)
	}
	return nil
}

// refuseForeignFiles: a directory without an identity but with data is not empty, it is damaged.
func refuseForeignFiles(path string) error {
	for _, sub := range []string{"journal", "state", "partitions"} {
		if _, err := os.Stat(filepath.Join(path, sub)); err == nil {
			return fmt.Errorf("data_dir: %s has data (%s) but no %s: restore that file, or set the directory aside and let the node join as a new one",
				path, sub, identityFile)
		}
	}
	return nil
}

// changeLocked writes an identity that differs from the present one, durably, and then goes by it. After an error nothing has changed
// here: who asked may ask again, and nobody goes by what a restart would forget.
func (d *dataDir) changeLocked(to identity) error {
	if err := save(d.path, to); err != nil {
		return err
	}
	// Not the rest, which others read without the lock: it stays as it was at opening.
	d.id.Format, d.id.MeshID, d.id.Founding, d.id.Founded = to.Format, to.MeshID, to.Founding, to.Founded
	d.id.GivenUp, d.id.Former, d.id.Lost, d.id.Marks = to.GivenUp, to.Former, to.Lost, to.Marks
	return nil
}

// save replaces the identity file, durably.
func save(dir string, id identity) error {
	raw, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(dir, identityFile), append(raw, '\n')); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	return nil
}

// newSuffix marks a file that is to replace another one.
const newSuffix = ".new"

// replaceFile gives a file new content, durably and as a whole.
func replaceFile(path string, b []byte) error {
	if err := writeSynced(path+newSuffix, b); err != nil {
		return err
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// makeDir makes a directory, and those above it that are missing, durably. Those that are there may belong to others: they stay as they are.
func makeDir(path string) error {
	st, err := os.Stat(path)
	if err == nil && !st.IsDir() {
		return fmt.Errorf("%s is not a directory", path)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(path)
	if err := makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// founding reports whether a founding was begun here and not completed.
func (d *dataDir) founding() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id.Founding
}

// setMesh remembers the mesh that this node founded or joined; it refuses another one than that. Safe for concurrent use.
func (d *dataDir) setMesh(m ring.MeshID, founding bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.otherMeshLocked(m); err != nil {
		return err
	}
	to := d.id
	to.MeshID, to.Founding = m, founding
	return d.changeLocked(to)
}

// floor is the version below which the mesh does not go back.
func (d *dataDir) floor() wire.Version {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id.Format
}

// raiseFloor notes durably that the mesh does not go back below version v; false where that was known. Safe for concurrent use.
func (d *dataDir) raiseFloor(v wire.Version) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v <= d.id.Format {
		return false, nil
	}
	to := d.id
	to.Format = v
	if err := d.changeLocked(to); err != nil {
		return false, err
	}
	return true, nil
}

func (d *dataDir) otherMeshLocked(m ring.MeshID) error {
	own := d.id.MeshID
	if own.IsZero() && d.id.Founded != nil {
		own = d.id.Founded.Mesh
	}
	if !own.IsZero() && own != m {
		return fmt.Errorf("data_dir: %s belongs to mesh %s, not to %s: to let the node join that one, empty the directory", d.path, own, m)
	}
	return nil
}

// record is the founding record that names this node; nil when there is none. Nobody changes it.
func (d *dataDir) record() *foundingRecord {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id.Founded
}

// decide writes a new founding record, without taking up its mesh yet.
func (d *dataDir) decide(rec *foundingRecord) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.otherMeshLocked(rec.Mesh); err != nil {
		return err
	}
	to := d.id
	to.Founded = rec
	return d.changeLocked(to)
}

// take writes a founding record that another node decided, together with its mesh; one that is there stays.
func (d *dataDir) take(rec *foundingRecord) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.otherMeshLocked(rec.Mesh); err != nil {
		return err
	}
	if d.id.Founded != nil {
		return nil // the same: its mesh is
	}
	to := d.id
	to.Founded, to.MeshID = rec, rec.Mesh
	return d.changeLocked(to)
}

// recordDone notes that nobody needs the founding record any more.
func (d *dataDir) recordDone() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	to, done := d.id, *d.id.Founded
	done.Done = true
	to.Founded = &done
	return d.changeLocked(to)
}

// close frees the directory for another process.
func (d *dataDir) close() error {
	if d.lock == nil { // there is no lock to take in a copy of a directory
		return nil
	}
	return d.lock.Close()
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

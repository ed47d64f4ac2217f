package node

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// The Debug functions show what a stopped node has on disk. They open everything for reading alone, repair nothing and make no file, so
// that they work on a read-only copy too. What they find they give out one item after the other, and hold no more than that; an error of
// emit ends them and is returned.

// ErrDamage is what they return, at their end, when they found damage.
var ErrDamage = errors.New("damage was found")

// DebugFinding is a place on disk where something is the matter.
type DebugFinding struct {
	Item     string `json:"item"` // finding
	Kind     string `json:"kind"` // damage, missing, torn, unapplied, leftover
	Damage   bool   `json:"damage"`
	File     string `json:"file"`
	Position int64  `json:"position"`
	End      int64  `json:"end,omitempty"` // where sound bytes begin again
	Detail   string `json:"detail"`
}

// debugging is one run of a Debug function.
type debugging struct {
	dir     *dataDir
	store   *log.PebbleStore // nil: not there, or not readable
	groups  []log.GroupState // as far as the journal could be read
	held    []replica.Held   // by name
	refused error            // why the journal could not be read to its end
	emit    func(item any) error
	damage  bool
}

// openDebug opens a directory. What is damaged there is a finding, not an error, unless nothing but names is wanted of it.
func openDebug(path string, namesOnly bool, emit func(item any) error) (d *debugging, err error) {
	d = &debugging{emit: emit}
	if d.dir, err = openWith(path, lockShared); err != nil {
		return nil, err
	}
	if err := d.open(namesOnly); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *debugging) open(namesOnly bool) (err error) {
	unreadable := d.unreadable
	if namesOnly {
		unreadable = func(string, error) error { return nil }
	}
	if d.groups, d.refused = log.ReadJournal(d.path("journal")); d.refused != nil {
		if err := unreadable(d.path("journal"), d.refused); err != nil {
			return err
		}
	}
	if state := d.path("state"); exists(state) {
		store, err := log.OpenStore(log.StoreConfig{Dir: state, ReadOnly: true})
		if err == nil {
			d.store = store
		} else if err := unreadable(state, err); err != nil {
			return err
		}
	}
	d.held, err = replica.HeldReplicas(d.groups, d.readable())
	slices.SortStableFunc(d.held, func(a, b replica.Held) int {
		as, an := d.nameOf(&a)
		bs, bn := d.nameOf(&b)
		return cmp.Or(cmp.Compare(as, bs), cmp.Compare(an, bn))
	})
	if err != nil {
		return unreadable(d.path("state"), err)
	}
	return nil
}

// readable is the store, or a nil interface.
func (d *debugging) readable() log.Store {
	if d.store == nil {
		return nil
	}
	return d.store
}

func (d *debugging) path(name string) string { return filepath.Join(d.dir.path, name) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// unreadable makes a finding of an error about a whole part, unless this process alone is kept from reading it.
func (d *debugging) unreadable(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return err
	}
	return d.found(log.Finding{Path: path, Kind: log.FoundDamage, Detail: err.Error()})
}

func (d *debugging) found(f log.Finding) error {
	d.damage = d.damage || f.Kind.Damage()
	return d.emit(&DebugFinding{Item: "finding", Kind: string(f.Kind), Damage: f.Kind.Damage(), File: f.Path, Position: f.Pos, End: f.End, Detail: f.Detail})
}

func (d *debugging) close() (err error) {
	if d.store != nil {
		err = d.store.Close()
	}
	return errors.Join(err, d.dir.close())
}

// end closes everything, and adds ErrDamage where nothing else went wrong.
func (d *debugging) end(err error) error {
	if err = errors.Join(err, d.close()); err == nil && d.damage {
		return ErrDamage
	}
	return err
}

// nameOf is what people call a replica's group.
func (d *debugging) nameOf(h *replica.Held) (stream string, number int) {
	if h.Birth.Kind == replica.KindCatalog {
		if i, ok := shardOf(d.dir.id.MeshID, h.Birth.Group); ok {
			return catalogStream, i
		}
		return catalogStream, -1
	}
	spec, err := partition.ParseSpec(h.Birth.Spec)
	if err != nil {
		return "", -1
	}
	return spec.Name, int(spec.Partition)
}

// resolve finds the group that STREAM/NUMBER or an id stands for.
func (d *debugging) resolve(word string, more ...ring.GroupID) (ring.GroupID, error) {
	var id ring.GroupID
	if id.UnmarshalText([]byte(word)) == nil {
		known := slices.Contains(more, id) || slices.ContainsFunc(d.groups, func(g log.GroupState) bool { return g.Group == id }) ||
			slices.ContainsFunc(d.held, func(h replica.Held) bool { return h.Birth.Group == id })
		if !known {
			return id, fmt.Errorf("group %s has nothing here", word)
		}
		return id, nil
	}
	cut := strings.LastIndexByte(word, '/')
	number, err := strconv.Atoi(word[cut+1:])
	if cut < 0 || err != nil {
		return id, wire.Errorf(wire.KindInvalid, "", "%q is neither STREAM/PARTITION nor the id of a group", word)
	}
	var found []string
	for i := range d.held {
		if stream, n := d.nameOf(&d.held[i]); stream == word[:cut] && n == number {
			id = d.held[i].Birth.Group
			found = append(found, id.String())
		}
	}
	switch len(found) {
	case 0:
		return id, fmt.Errorf("%s has no replica here; without an argument, skein debug log lists what has", word)
	case 1:
		return id, nil
	}
	return id, fmt.Errorf("%s was made more than once: give the group, one of %s", word, strings.Join(found, ", "))
}

// lockShared keeps the node from starting while others may look, too. It makes no file: a copy without one is nobody's.
func lockShared(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

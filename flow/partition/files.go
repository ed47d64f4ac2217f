package partition

import (
	"path/filepath"
	"strconv"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
)

// Files says where a replica's events lie and what the small state knows of them, for people who look at a node that does not run.
type Files struct {
	// Dir holds the segments in use. Where the state is not known, it is the newest there is.
	Dir string
	// Recovery is what the segments are opened with; nil where the state is not known.
	Recovery *log.Recovery
}

// FindFiles finds the files of a replica below dir, the Config's, without opening or changing anything. store may be nil: nothing is known
// then. Errors: KindCorrupt when the record of the state is damaged, and then the files are those of an unknown state; I/O.
func FindFiles(dir string, store log.Store, group ring.GroupID, prefix []byte) (Files, error) {
	p := Partition{cfg: Config{Dir: dir}.withDefaults(), dir: filepath.Join(dir, group.String()), keys: keyspace{prefix: prefix}}
	rec, gen, err := p.recorded(store)
	if rec == nil {
		gen = p.newestGeneration()
	}
	return Files{Dir: p.segmentDir(gen), Recovery: rec}, err
}

// recorded reads what the store has of the segments, and their generation.
func (p *Partition) recorded(store log.Store) (*log.Recovery, uint32, error) {
	if store == nil {
		return nil, 0, nil
	}
	var st state
	raw, ok, err := store.Get(p.keys.state())
	if err == nil && ok {
		err = st.decode(raw)
	}
	if err != nil {
		return nil, 0, err
	}
	rec, err := st.recovery(store, p.keys)
	if err != nil {
		return nil, 0, err
	}
	return &rec, st.dirGen, nil
}

// newestGeneration is the highest generation of segments that has a directory.
func (p *Partition) newestGeneration() (newest uint32) {
	names, err := p.fs().List(p.dir)
	if err != nil {
		return 0
	}
	for _, name := range names {
		if gen, err := strconv.ParseUint(name, 16, 32); err == nil {
			newest = max(newest, uint32(gen))
		}
	}
	return newest
}

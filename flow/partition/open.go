package partition

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Config is what all partitions of a node share.
type Config struct {
	// Dir holds one directory for each partition, named by its group. Its own name is for the caller to make durable.
	Dir string
	// Store holds the small state; the segments hold the batches.
	Store log.Store
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
	// Metrics; nil: nothing is measured.
	Metrics *Metrics
	// MaxIdentities bounds the identities one partition holds in memory, at about 100 bytes each; default 1<<18. The others
	// are looked up in the store. It never changes an outcome.
	MaxIdentities int
	// MaxFilterBytes bounds the filters that spare most of those lookups, for each partition; default 4 MiB, enough for 3.3
	// million identities.
	MaxFilterBytes int
	// Limit bounds the identities all partitions hold in memory together; nil: each has its own bound only.
	Limit *NodeLimit
	// Segments says how batches are kept, and on which file system; the zero value is fine. Its Log and Root are set here.
	Segments log.SegmentConfig
}

const (
	defaultIdentities  = 1 << 18
	defaultFilterBytes = 4 << 20
	minFileBytes       = 1 << 20
	maxFileBytes       = 64 << 20
)

// NewFactory returns the factory of partitions, for replica groups of KindPartition.
func NewFactory(cfg Config) replica.Factory {
	return func(b replica.Birth, prefix []byte) (replica.StateMachine, error) {
		p, err := Open(cfg, b.Group, b.Spec, prefix)
		if err != nil {
			return nil, err // not a nil *Partition in an interface
		}
		return p, nil
	}
}

// Open opens a partition: at birth empty, else as the store has it. Where the segments are damaged below what was
// durable it is open, and Damage says why they are not. Errors: KindCorrupt when a record of the state is damaged; KindInvalid for the spec; I/O.
func Open(cfg Config, group ring.GroupID, spec, prefix []byte) (*Partition, error) {
	p, err := open(cfg, group, spec, prefix)
	if err != nil {
		return nil, fmt.Errorf("open partition %s: %w", group, err)
	}
	return p, nil
}

func open(cfg Config, group ring.GroupID, rawSpec, prefix []byte) (*Partition, error) {
	cfg = cfg.withDefaults()
	spec, err := ParseSpec(rawSpec)
	if err != nil {
		return nil, err
	}
	p := &Partition{
		cfg:   cfg,
		group: group,
		dir:   filepath.Join(cfg.Dir, group.String()),
		keys:  keyspace{prefix: append([]byte(nil), prefix...)},
		log:   cfg.Logger.With("stream", spec.Name, "partition", spec.Partition),
	}
	p.st = p.emptyState(spec)
	if err := p.st.load(cfg.Store, p.keys); err != nil {
		p.st.window.release()
		return nil, err
	}
	if err := p.openFiles(); err != nil {
		p.st.window.release()
		return nil, err
	}
	return p, nil
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Segments.FS == nil {
		c.Segments.FS = log.OS{}
	}
	if c.MaxIdentities == 0 {
		c.MaxIdentities = defaultIdentities
	}
	if c.MaxFilterBytes == 0 {
		c.MaxFilterBytes = defaultFilterBytes
	}
	return c
}

// emptyState is the state at birth.
func (p *Partition) emptyState(spec Spec) state {
	return state{
		spec:     spec,
		sessions: sessions{keys: p.keys, open: make(map[SessionID]*session)},
		window:   p.newWindow(0),
	}
}

func (p *Partition) newWindow(gen uint32) window {
	lim := memoryLimits{identities: p.cfg.MaxIdentities, filterWords: p.cfg.MaxFilterBytes / 8, node: p.cfg.Limit, metrics: p.cfg.Metrics}
	return window{keys: p.keys, store: p.cfg.Store, gen: gen, lim: lim}
}

// openFiles cleans up after a snapshot that was not finished, and opens the segments of the generation that the state names. Where they
// are damaged the partition is open nevertheless, to be mended.
func (p *Partition) openFiles() error {
	if err := p.dropStaged(); err != nil {
		return err
	}
	if err := p.sortDirs(); err != nil {
		return err
	}
	segs, err := p.openSegments(p.segmentDir(p.st.dirGen))
	switch {
	case wire.KindOf(err) == wire.KindCorrupt:
		p.damage, p.v.damaged = err, err
	case err != nil:
		return err
	}
	p.v.segs, p.v.dirGen, p.v.windowGen = segs, p.st.dirGen, p.st.window.gen
	p.publish()
	return nil
}

func (p *Partition) openSegments(dir string) (*log.Segments, error) {
	why, _, err := log.Damaged(p.fs(), dir)
	if err = errors.Join(err, why); err != nil {
		return nil, err
	}
	rec, err := p.st.recovery(p.cfg.Store, p.keys)
	if err != nil {
		return nil, err
	}
	segs, err := log.OpenSegments(dir, p.segmentConfig(), rec)
	if err != nil {
		return nil, err
	}
	if err := p.noteSynced(segs, p.st.dirGen, 0); err != nil {
		return nil, errors.Join(err, segs.Close())
	}
	return segs, nil
}

// fs holds the files.
func (p *Partition) fs() log.FS { return p.cfg.Segments.FS }

func (p *Partition) segmentConfig() log.SegmentConfig {
	c := p.cfg.Segments
	c.Log, c.Root = p.log, p.cfg.Dir
	if size := p.st.spec.RetentionBytes; size > 0 && c.FileBytes == 0 {
		// Space comes back file by file.
		c.FileBytes = min(max(size/16, minFileBytes), maxFileBytes)
	}
	return c
}

// dropStaged removes the keys of generations other than the state's, where there may be some.
func (p *Partition) dropStaged() error {
	_, staged, err := p.cfg.Store.Get(p.keys.staging())
	if err != nil || !staged {
		return err
	}
	b := p.cfg.Store.NewBatch()
	dropGenerations(b, p.keys, keyIdentity, p.st.window.gen)
	dropGenerations(b, p.keys, keySynced, p.st.dirGen)
	b.Delete(p.keys.staging())
	return b.Commit()
}

// dropGenerations removes all keys of a kind but those of one generation.
func dropGenerations(b log.Batch, keys keyspace, kind byte, keep uint32) {
	prefix := keys.plain(kind)
	b.DeleteRange(prefix, keys.generation(kind, keep))
	b.DeleteRange(log.PrefixEnd(keys.generation(kind, keep)), log.PrefixEnd(prefix))
}

// Destroy closes the partition, removes its files, and adds the removal of its keys to b.
func (p *Partition) Destroy(b log.Batch) error {
	err := p.Close()
	b.DeleteRange(p.keys.prefix, log.PrefixEnd(p.keys.prefix))
	return errors.Join(err, p.fs().RemoveAll(p.dir))
}

// errClosed is what a closed partition answers.
func errClosed() error {
	return &wire.Error{Kind: wire.KindClosed, Op: "partition", Detail: "the replica was closed"}
}

//go:build !skeinplanted

package partition

import "github.com/skeinmesh/skein/flow/log"

type plantedState struct{}

func (p *Partition) plantOwner(uint64, log.Batch) { _ = p.planted }

func (p *Partition) plantRetry(log.Entry, *entry, *BatchResult, log.Batch) error { return nil }

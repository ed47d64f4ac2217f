package backup

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

const (
	magic   = "SKEINEXP"
	version = 1

	kindManifest = 1
	kindSection  = 2
	kindBatches  = 3
	kindEnd      = 4

	prefixBytes = len(magic) + 4
	headBytes   = 9

	// maxSmall bounds a frame of msgpack, maxBatches one of batches: the largest batch there can be.
	maxSmall   = 1 << 20
	maxBatches = batch.MaxMeta + batch.MaxRaw
	// frameBytes is how many bytes of batches the writer gathers in a frame, where one batch alone is not more.
	frameBytes = 256 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ExportID names one export. An import that goes on after an interruption must bring the same one.
type ExportID [16]byte

// Manifest is what was exported.
type Manifest struct {
	Export     ExportID             `msgpack:"x"`
	ExportedMS int64                `msgpack:"t"` // Unix ms
	Cluster    string               `msgpack:"cl"`
	Name       string               `msgpack:"n"`
	Stream     ring.StreamID        `msgpack:"i"`
	Seed       ring.Seed            `msgpack:"k"` // of the key hash and of identities
	CreatedMS  int64                `msgpack:"c"`
	Config     catalog.StreamConfig `msgpack:"cf"`
	Partitions []Partition          `msgpack:"p"` // ascending by id
}

// Partition is one partition of an exported stream.
type Partition struct {
	ID    ring.PartitionID `msgpack:"i"`
	Range ring.Range       `msgpack:"r"`
}

// Section says what follows of a partition: batches from Base, the offset at which the first of them begins, up to End. Readers see
// events from Start on: it is above Base where the log was trimmed inside a batch.
type Section struct {
	Partition ring.PartitionID `msgpack:"p"`
	Base      uint64           `msgpack:"b"`
	Start     uint64           `msgpack:"s"`
	End       uint64           `msgpack:"e"`
}

// Totals counts a file.
type Totals struct {
	Partitions int    `msgpack:"p"`
	Batches    uint64 `msgpack:"b"`
	Events     uint64 `msgpack:"e"` // that readers see
	Bytes      uint64 `msgpack:"y"` // of batches
}

// end is the last frame.
type end struct {
	Totals `msgpack:"t"`
	Sum    [sha256.Size]byte `msgpack:"s"`
}

// check holds a manifest against what the catalog relies on.
func (m *Manifest) check() error {
	if err := catalog.CheckName(m.Name); err != nil {
		return err
	}
	if n := len(m.Partitions); n < 1 || n > catalog.MaxPartitions {
		return fmt.Errorf("%d partitions; there can be 1 to %d", n, catalog.MaxPartitions)
	}
	next := uint64(0)
	for i, p := range m.Partitions {
		last := i == len(m.Partitions)-1
		if i > 0 && p.ID <= m.Partitions[i-1].ID || p.Range.Lo != next || p.Range.Hi < p.Range.Lo || last != (p.Range.Hi == ^uint64(0)) {
			return fmt.Errorf("partition %d is out of order, or its range leaves a gap or overlaps", p.ID)
		}
		next = p.Range.Hi + 1
	}
	return nil
}

func (s *Section) check() error {
	if s.Base > s.Start || s.Start > s.End || s.End > 1<<62 || s.Start == s.End && s.Base != s.End {
		return fmt.Errorf("partition %d from offset %d, seen from %d, to %d", s.Partition, s.Base, s.Start, s.End)
	}
	return nil
}

func appendHead(dst []byte, kind byte, body []byte) []byte {
	dst = append(dst, kind)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(body)))
	return binary.LittleEndian.AppendUint32(dst, frameCRC(dst[len(dst)-5:], body))
}

// frameCRC is the CRC of a frame's kind and length, then its body.
func frameCRC(kindAndLength, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(kindAndLength, castagnoli), castagnoli, body)
}

func corrupt(format string, args ...any) error {
	return wire.Errorf(wire.KindCorrupt, CodeDamaged, format, args...)
}

// CodeDamaged is the code of everything that is wrong with a file.
const CodeDamaged = "damaged-export"

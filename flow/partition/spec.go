package partition

import (
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// specVersion is the only version of Spec there is.
const specVersion = 1

// Spec is what a partition is born with; Birth.Spec holds its encoded form. The limits can be changed later by a Config
// entry, the rest never.
type Spec struct {
	Version   uint8            `msgpack:"v"`
	Stream    ring.StreamID    `msgpack:"s"`
	Name      string           `msgpack:"n"` // the stream's
	Partition ring.PartitionID `msgpack:"p"`
	Range     ring.Range       `msgpack:"r"`
	Seed      ring.Seed        `msgpack:"h"` // of the stream's key hash and identities
	Limits    `msgpack:"l"`
}

// Limits is the part of a spec that may change.
type Limits struct {
	// DedupeWindowMS is how long an identity is remembered at least, in ms; it is forgotten up to a minute later. 0: never
	// remembered beyond its minute.
	DedupeWindowMS int64 `msgpack:"dw"`
	// RetentionMS and RetentionBytes say when old batches may go, by age in ms and by the partition's size; 0 or below: never.
	RetentionMS    int64 `msgpack:"rm"`
	RetentionBytes int64 `msgpack:"rb"`
	// MaxEventBytes bounds one event; publishers' nodes hold to it, not this package.
	MaxEventBytes int `msgpack:"me"`
	// Replicas and MinCopies are for the replica group and the publish path.
	Replicas  int `msgpack:"rp"`
	MinCopies int `msgpack:"mc"`
}

// maxName bounds a stream's name in a spec; the API's own limit is below it.
const maxName = 1024

// Encode returns the spec's encoded form.
func (s Spec) Encode() ([]byte, error) {
	s.Version = specVersion
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return wire.Marshal(&s)
}

// ParseSpec reads what Encode wrote. Errors: KindCorrupt, KindInvalid.
func ParseSpec(b []byte) (Spec, error) {
	var s Spec
	if err := wire.Unmarshal(b, &s); err != nil {
		return Spec{}, err
	}
	if s.Version != specVersion {
		return Spec{}, wire.Errorf(wire.KindInvalid, "", "partition spec version %d is not known", s.Version)
	}
	return s, s.Validate()
}

// Validate says what is wrong with the spec, if anything. Errors: KindInvalid.
func (s *Spec) Validate() error {
	switch {
	case len(s.Name) > maxName:
		return wire.Errorf(wire.KindInvalid, "", "stream name of %d bytes, at most %d", len(s.Name), maxName)
	case s.Range.Lo > s.Range.Hi:
		return wire.Errorf(wire.KindInvalid, "", "partition range from %#x to %#x", s.Range.Lo, s.Range.Hi)
	}
	return s.Limits.Validate()
}

// Validate says what is wrong with the limits, if anything. Errors: KindInvalid.
func (l *Limits) Validate() error {
	switch {
	case l.DedupeWindowMS < 0:
		return wire.Errorf(wire.KindInvalid, "", "dedupe window of %d ms", l.DedupeWindowMS)
	case l.MaxEventBytes < 0:
		return wire.Errorf(wire.KindInvalid, "", "largest event of %d bytes", l.MaxEventBytes)
	case l.Replicas < 0 || l.MinCopies < 0:
		return wire.Errorf(wire.KindInvalid, "", "%d replicas, at least %d copies", l.Replicas, l.MinCopies)
	}
	return nil
}

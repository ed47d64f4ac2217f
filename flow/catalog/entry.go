package catalog

import (
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// EntryKind is the first byte of an entry; the second is the version of its body. On disk and on the wire: append only.
// Reserved for later: 16–31 lineage (reshape intents, seals), 32–47 consumer groups, 48–63 access tokens.
type EntryKind uint8

const (
	EntryCreateStream EntryKind = 1
	EntryUpdateStream EntryKind = 2
	EntryDeleteStream EntryKind = 3
	EntryBeginImport  EntryKind = 4 // since wire.Version2, as the next
	EntryEndImport    EntryKind = 5
)

const entryVersion = 1

// Command is one of CreateStream, UpdateStream, DeleteStream, BeginImport and EndImport.
type Command interface{ kind() EntryKind }

// CreateMode says what to do when the stream exists. The numbers are on disk: append only.
type CreateMode uint8

const (
	CreateOrSame CreateMode = 0 // equal config: the stream as it is; different: KindConflict (config-differs)
	CreateOnly   CreateMode = 1 // exists: KindConflict (exists)
)

// CreateStream makes a stream. The proposer chooses everything random or timed; a retry must carry the same StreamID.
type CreateStream struct {
	Name   string        `msgpack:"n"`
	ID     ring.StreamID `msgpack:"i"`
	Seed   ring.Seed     `msgpack:"k"`
	Config StreamConfig  `msgpack:"c"` // after WithDefaults and Validate
	// Partitions are ascending by id, and their ranges cover the hash space in that order; Group is
	// ring.PartitionGroup(ID, partition); each Birth names the founding members.
	Partitions []Partition `msgpack:"p"`
	NowMS      int64       `msgpack:"t"`
	Mode       CreateMode  `msgpack:"m"`
}

// UpdateStream replaces a stream's config.
type UpdateStream struct {
	Name    string       `msgpack:"n"`
	Version uint64       `msgpack:"v"` // the version it replaces; 0: any
	Config  StreamConfig `msgpack:"c"` // after WithDefaults and Validate
	NowMS   int64        `msgpack:"t"`
}

// DeleteStream removes a stream and leaves a tombstone.
type DeleteStream struct {
	Name  string        `msgpack:"n"`
	ID    ring.StreamID `msgpack:"i"` // the incarnation meant; zero: whichever there is
	NowMS int64         `msgpack:"t"`
	// Importing: only while it is being imported. Since wire.Version2.
	Importing bool `msgpack:"m,omitempty"`
}

func (CreateStream) kind() EntryKind { return EntryCreateStream }
func (UpdateStream) kind() EntryKind { return EntryUpdateStream }
func (DeleteStream) kind() EntryKind { return EntryDeleteStream }

// Encode makes the entry that carries c, after the checks of Decode.
func Encode(c Command) ([]byte, error) {
	if err := check(c); err != nil {
		return nil, err
	}
	body, err := wire.Marshal(c)
	if err != nil {
		return nil, err
	}
	if len(body)+2 > MaxEntryBytes {
		return nil, invalid("catalog entry of %d bytes; at most %d are allowed", len(body)+2, MaxEntryBytes)
	}
	return append([]byte{byte(c.kind()), entryVersion}, body...), nil
}

// Decode reads an entry and checks its bounds and structure. An owner must call it before it proposes bytes that another node sent.
// Errors: KindInvalid for a malformed body, KindUnavailable (code "unknown-entry") for a kind or version of a newer release.
func Decode(data []byte) (Command, error) {
	if len(data) < 2 || len(data) > MaxEntryBytes {
		return nil, invalid("catalog entry of %d bytes", len(data))
	}
	if data[1] != entryVersion {
		return nil, unknownEntry(data)
	}
	var (
		c   Command
		err error
	)
	switch EntryKind(data[0]) {
	case EntryCreateStream:
		c, err = decodeBody[CreateStream](data[2:])
	case EntryUpdateStream:
		c, err = decodeBody[UpdateStream](data[2:])
	case EntryDeleteStream:
		c, err = decodeBody[DeleteStream](data[2:])
	default:
		c, err = decodeImport(data)
	}
	if err != nil {
		return nil, err
	}
	return c, check(c)
}

// maxEntryValues bounds the values in an entry: of the largest stream there is they are a fifth of it.
const maxEntryValues = 1 << 17

func decodeBody[T Command](body []byte) (T, error) {
	var c T
	if err := wire.UnmarshalWithin(body, &c, maxEntryValues); err != nil {
		return c, &wire.Error{Kind: wire.KindInvalid, Detail: "catalog entry is malformed", Err: err}
	}
	return c, nil
}

const codeUnknownEntry = "unknown-entry"

func unknownEntry(data []byte) error {
	return wire.Errorf(wire.KindUnavailable, codeUnknownEntry,
		"catalog entry of kind %d version %d is not known to this release; upgrade this node", data[0], data[1])
}

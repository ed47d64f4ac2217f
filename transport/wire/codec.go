package wire

import (
	"bytes"

	"github.com/vmihailenco/msgpack/v5"
)

// Marshal encodes v as one msgpack value. Struct fields take their `msgpack` tags; string-keyed maps are sorted, so that
// equal values give equal bytes. A value that Unmarshal would refuse (depth, count) is an error here already.
func Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&buf)
	enc.SetSortMapKeys(true)
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		return nil, &Error{Kind: KindInternal, Op: "encode message", Err: err}
	}
	b := buf.Bytes()
	if _, err := scan(b, MaxElements); err != nil {
		return nil, &Error{Kind: KindInvalid, Op: "encode message", Err: err}
	}
	return b, nil
}

// Unmarshal decodes the one msgpack value in b into v, a pointer. All lengths, depths and counts are checked before
// anything is allocated; bytes after the value are refused. Every failure is of KindCorrupt. v does not alias b. Fields
// that v does not have are skipped, so that a newer peer may add some.
func Unmarshal(b []byte, v any) error { return UnmarshalWithin(b, v, MaxElements) }

// UnmarshalWithin is Unmarshal for messages of fewer values, where lists hold large structs.
func UnmarshalWithin(b []byte, v any, elements int) error {
	n, err := scan(b, elements)
	if err != nil {
		return err
	}
	if n != len(b) {
		return errTrailing
	}
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(bytes.NewReader(b))
	if err := dec.Decode(v); err != nil {
		return &Error{Kind: KindCorrupt, Op: "decode message", Err: err}
	}
	return nil
}

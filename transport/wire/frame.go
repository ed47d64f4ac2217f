package wire

import (
	"encoding/binary"
	"io"
	"slices"
)

// FrameType says what a frame is for. The numbers travel between nodes: append only.
type FrameType uint8

const (
	FrameHello    FrameType = 1 // session: who I am; both ways, and again when it changed
	FramePing     FrameType = 2 // session: Arg comes back in a FramePong
	FramePong     FrameType = 3
	FrameMessage  FrameType = 4 // one-way message of Method; a stream that starts with one carries only these
	FrameRequest  FrameType = 5 // request of Method; Arg: milliseconds until its deadline, 0: none
	FrameResponse FrameType = 6 // the one answer
	FrameOpen     FrameType = 7 // opens a stream of Method; the body is its hello
	FrameData     FrameType = 8 // one frame of an open stream
	FrameError    FrameType = 9 // an Error; nothing follows it in its direction
)

// HeaderSize is the number of bytes before each frame's body.
const HeaderSize = 12

// Header is what precedes each frame's body: length (4 bytes), type (1), zero (1), method (2), argument (4), big-endian.
type Header struct {
	Length uint32 // bytes of body, at most MaxFrame
	Type   FrameType
	Method Method
	Arg    uint32
}

// AppendHeader appends the 12 bytes of h to dst.
func AppendHeader(dst []byte, h Header) []byte {
	dst = binary.BigEndian.AppendUint32(dst, h.Length)
	dst = append(dst, byte(h.Type), 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.Method))
	return binary.BigEndian.AppendUint32(dst, h.Arg)
}

// AppendFrame appends a whole frame to dst; the header's length is taken from body.
func AppendFrame(dst []byte, h Header, body []byte) []byte {
	h.Length = uint32(len(body))
	dst = slices.Grow(dst, HeaderSize+len(body))
	return append(AppendHeader(dst, h), body...)
}

// ParseHeader reads a header. A body beyond MaxFrame or an unknown shape is of KindCorrupt.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, errShort
	}
	h := Header{
		Length: binary.BigEndian.Uint32(b),
		Type:   FrameType(b[4]),
		Method: Method(binary.BigEndian.Uint16(b[6:])),
		Arg:    binary.BigEndian.Uint32(b[8:]),
	}
	switch {
	case h.Length > MaxFrame:
		return Header{}, Errorf(KindCorrupt, CodeTooLarge, "frame of %d bytes is larger than %d", h.Length, MaxFrame)
	case h.Type < FrameHello || h.Type > FrameError || b[5] != 0:
		return Header{}, Errorf(KindCorrupt, "", "frame type %d is not known", h.Type)
	}
	return h, nil
}

// ReadHeader reads the next header from r: io.EOF when r ended between frames, io.ErrUnexpectedEOF within one.
func ReadHeader(r io.Reader) (Header, error) {
	var b [HeaderSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Header{}, err
	}
	return ParseHeader(b[:])
}

// bodyChunk is how much is allocated on a length's word alone; beyond it, memory follows the bytes that arrived.
const bodyChunk = 128 << 10

// ReadBody reads the body that follows a header into fresh memory, which the caller owns.
func ReadBody(r io.Reader, length uint32) ([]byte, error) {
	if length > MaxFrame {
		return nil, Errorf(KindCorrupt, CodeTooLarge, "frame of %d bytes is larger than %d", length, MaxFrame)
	}
	n := int(length)
	body := make([]byte, min(n, bodyChunk))
	for read := 0; ; {
		if _, err := io.ReadFull(r, body[read:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if read = len(body); read == n {
			return body, nil
		}
		grown := make([]byte, min(n, 4*read))
		copy(grown, body)
		body = grown
	}
}

// ReadFrame reads one header and its body.
func ReadFrame(r io.Reader) (Header, []byte, error) {
	h, err := ReadHeader(r)
	if err != nil {
		return h, nil, err
	}
	body, err := ReadBody(r, h.Length)
	return h, body, err
}

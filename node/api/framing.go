package api

import (
	"strings"

	"github.com/skeinmesh/skein/flow"
)

// ndjson is one envelope a line, and a line with the cursor at each flush.
type ndjson struct{}

func (ndjson) mediaType() string { return "application/x-ndjson" }
func (ndjson) perEvent() bool    { return false }

func (f ndjson) start(b []byte, cursor string, quiet bool) []byte {
	if quiet { // so that a client that leaves before the first event can come back to this place
		return f.flush(b, cursor)
	}
	return b
}

func (ndjson) event(b []byte, enc *encoder, ev *flow.Event, _ string) []byte {
	return append(enc.appendEvent(b, ev), '\n')
}

func (ndjson) flush(b []byte, cursor string) []byte {
	return append(appendCursor(b, cursor), "}\n"...)
}

func (f ndjson) idle(b []byte, cursor string) []byte { return f.flush(b, cursor) }

func (ndjson) end(b []byte, cursor string, goodbye bool, problem []byte) []byte {
	switch {
	case problem != nil:
		b = append(appendCursor(b, cursor), `,"error":`...)
		return append(append(b, problem...), "}\n"...)
	case goodbye:
		return append(appendCursor(b, cursor), `,"goodbye":"draining"}`+"\n"...)
	}
	return b
}

func appendCursor(b []byte, cursor string) []byte {
	return appendJSONString(append(b, `{"cursor":`...), cursor)
}

// sse is server-sent events (HTML Living Standard, section 9.2). Data is one line, since envelopes have no raw line breaks; ids stand
// only in blocks with data, for a block without data changes the client's position without giving it anything.
type sse struct{}

// sseRetry asks clients to wait this long before they connect again, in milliseconds.
const sseRetry = "retry: 1000\n"

func (sse) mediaType() string { return "text/event-stream" }
func (sse) perEvent() bool    { return true }

func (sse) start(b []byte, cursor string, quiet bool) []byte {
	b = append(b, sseRetry...)
	if quiet && cursor != "" {
		return sseBlock(b, "start", cursor, append(appendCursor(nil, cursor), '}'))
	}
	return b // the first block goes on from here: some clients take a block without data for an event
}

func (sse) event(b []byte, enc *encoder, ev *flow.Event, cursor string) []byte {
	if cursor != "" {
		b = append(b, "id: "...)
		b = append(b, cursor...)
		b = append(b, '\n')
	}
	b = append(b, "data: "...)
	b = enc.appendEvent(b, ev)
	return append(b, "\n\n"...)
}

func (sse) flush(b []byte, _ string) []byte { return b }
func (sse) idle(b []byte, _ string) []byte  { return append(b, ":\n"...) }

func (sse) end(b []byte, cursor string, goodbye bool, problem []byte) []byte {
	switch {
	case problem != nil:
		return sseBlock(b, "error", "", problem)
	case goodbye:
		return sseBlock(b, "goodbye", cursor, append(appendCursor(nil, cursor), `,"reason":"draining"}`...))
	}
	return sseBlock(b, "end", cursor, append(appendCursor(nil, cursor), '}'))
}

func sseBlock(b []byte, event, id string, data []byte) []byte {
	b = append(append(b, "event: "...), event...)
	if id != "" && !strings.ContainsAny(id, "\r\n\x00") {
		b = append(append(b, "\nid: "...), id...)
	}
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...)
}

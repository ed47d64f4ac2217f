package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/transport/wire"
)

// results holds what became of the events of a batch, small: it grows with the number of events, not of bytes.
type results struct {
	c       *Call
	summary bool
	n       int // items seen
	failed  int
	errs    []badItem // ascending by item; with summary the first alone
	entries []entry   // by item; none with summary
	charged int64     // taken from the budget for entries
	fatal   *Problem  // the first failure that is not its event's own fault
}

// entry is one stored event; a failed one is in errs.
type entry struct {
	offset    uint64
	partition uint32
	flags     uint8
}

const (
	flagFailed    = 1
	flagDuplicate = 2
	entryBytes    = 16
	entryBlock    = 16 << 10 // entries charged at a time
)

func (r *results) stored() int { return r.n - r.failed }

// add notes the outcome of a chunk: its malformed items, and res, or err for all others. An error of its own means that there is no
// memory for more results; these are noted still.
func (r *results) add(ch *chunk, res []flow.PublishResult, err error) error {
	var grow error
	if need := int64(r.n+ch.n) * entryBytes; !r.summary && need > r.charged && r.n > 0 {
		if grow = r.c.reserveBriefly(entryBlock * entryBytes); grow == nil {
			r.charged += entryBlock * entryBytes
		}
	}
	bad := ch.bad
	var last badItem // failures of a chunk mostly share one error
	var lastErr error
	for i := range ch.recs {
		for len(bad) > 0 && bad[0].item < ch.items[i] {
			r.fail(bad[0])
			bad = bad[1:]
		}
		itemErr := err
		if err == nil {
			itemErr = res[i].Err
		}
		if itemErr == nil {
			r.ok(&res[i])
			continue
		}
		if itemErr != lastErr {
			lastErr, last.p = itemErr, problemOf(publishError(itemErr))
			if k := wire.KindOf(itemErr); r.fatal == nil && k != wire.KindInvalid && k != wire.KindConflict {
				r.fatal = last.p
			}
		}
		last.item = ch.items[i]
		r.fail(last)
	}
	for _, b := range bad {
		r.fail(b)
	}
	return grow
}

func (r *results) ok(p *flow.PublishResult) {
	r.n++
	if r.summary {
		return
	}
	e := entry{offset: p.Offset, partition: uint32(p.Partition)}
	if p.Duplicate {
		e.flags = flagDuplicate
	}
	r.entries = append(r.entries, e)
}

func (r *results) fail(b badItem) {
	r.n++
	r.failed++
	if r.summary {
		if len(r.errs) == 0 {
			r.errs = append(r.errs, b)
		}
		return
	}
	r.errs = append(r.errs, b)
	r.entries = append(r.entries, entry{flags: flagFailed})
}

// write answers with the results in input order. stop, where not nil, is why the rest of the body was not stored; stopped_at is the
// first event of that rest.
func (r *results) write(c *Call, accepted bool, stop *Problem) {
	b := make([]byte, 0, 64<<10)
	b = append(b, `{"ok":`...)
	b = strconv.AppendInt(b, int64(r.stored()), 10)
	b = append(b, `,"failed":`...)
	b = strconv.AppendInt(b, int64(r.failed), 10)
	if stop != nil {
		b = append(b, `,"stopped_at":`...)
		b = strconv.AppendInt(b, int64(r.n), 10)
		b = appendItemError(append(b, `,"error":`...), stop)
	} else if r.summary && r.failed > 0 {
		b = append(b, `,"first_failed":`...)
		b = strconv.AppendInt(b, int64(r.errs[0].item), 10)
		b = appendItemError(append(b, `,"error":`...), r.errs[0].p)
	}
	h := c.w.Header()
	h.Set("Content-Type", contentJSON)
	status := http.StatusOK
	if accepted {
		status = http.StatusAccepted
	}
	ctl := http.NewResponseController(c.w.ResponseWriter)
	_ = ctl.SetWriteDeadline(time.Now().Add(c.s.cfg.MaxWait))
	c.w.WriteHeader(status)
	if !r.summary {
		var err error
		if b, err = r.writeEntries(c, b, accepted); err != nil {
			return // the client left
		}
	}
	_, _ = c.w.Write(append(b, "}\n"...))
}

func (r *results) writeEntries(c *Call, b []byte, accepted bool) ([]byte, error) {
	b = append(b, `,"results":[`...)
	errs := r.errs
	for i, e := range r.entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		if e.flags&flagFailed != 0 {
			b = appendItemError(append(b, `,"error":`...), errs[0].p)
			errs = errs[1:]
		} else {
			b = appendEntry(b, e, accepted)
		}
		b = append(b, '}')
		if len(b) > 60<<10 {
			if _, err := c.w.Write(b); err != nil {
				return nil, err
			}
			b = b[:0]
		}
	}
	return append(b, ']'), nil
}

func appendEntry(b []byte, e entry, accepted bool) []byte {
	b = append(b, `,"partition":`...)
	b = strconv.AppendUint(b, uint64(e.partition), 10)
	if accepted {
		return b
	}
	b = append(b, `,"offset":`...)
	b = strconv.AppendUint(b, e.offset, 10)
	b = append(b, `,"duplicate":`...)
	return strconv.AppendBool(b, e.flags&flagDuplicate != 0)
}

func appendItemError(b []byte, p *Problem) []byte {
	b = append(b, `{"code":`...)
	b = appendJSONString(b, p.Code)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(p.Status), 10)
	b = append(b, `,"detail":`...)
	b = appendJSONString(b, p.Detail)
	b = append(b, `,"retryable":`...)
	b = strconv.AppendBool(b, p.Retryable)
	return append(b, '}')
}

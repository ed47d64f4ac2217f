package partition

import (
	"fmt"
	"os"
	"reflect"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

var sessionA, sessionB = SessionID{0xa}, SessionID{0xb}

func result(t *testing.T, res any) BatchResult {
	t.Helper()
	r, ok := res.(BatchResult)
	if !ok {
		t.Fatalf("result is %T", res)
	}
	return r
}

func TestOffsetsFollowEachOther(t *testing.T) {
	h := mustHost(t, Config{})
	res := h.apply(openEntry(11, sessionA, 1000),
		batchEntry(12, sessionA, 1, 1001, rec{value: "a"}, rec{value: "b"}),
		batchEntry(13, sessionA, 2, 900, rec{value: "c"}))
	if got := result(t, res[1]); got.Base != 0 || got.Count != 2 || got.Stamp != 1001 {
		t.Errorf("first: %+v", got)
	}
	if got := result(t, res[2]); got.Base != 2 || got.Stamp != 1001 {
		t.Errorf("second, stamped in the past: %+v", got)
	}
	events := h.read(1)
	if want := []readEvent{{1, 1001, "b"}, {2, 1001, "c"}}; !reflect.DeepEqual(events, want) {
		t.Errorf("read %v", events)
	}
}

func TestRetryAfterFailoverReturnsTheFirstOffsets(t *testing.T) {
	h := mustHost(t, Config{})
	first := batchEntry(12, sessionA, 1, 1000, rec{id: 1, value: "a"}, rec{id: 1, value: "a"}, rec{value: "b"})
	res := h.apply(openEntry(11, sessionA, 1000), first)
	want := result(t, res[1])
	// The next owner stamps and proposes it again.
	again := batchEntry(13, sessionA, 1, 2000, rec{id: 1, value: "a"}, rec{id: 1, value: "a"}, rec{value: "b"})
	got := result(t, h.apply(again)[0])
	if want.Retry = true; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if h.p.Next() != 2 {
		t.Errorf("%d events", h.p.Next())
	}
	other := batchEntry(14, sessionA, 1, 2000, rec{value: "something else"})
	if got := result(t, h.apply(other)[0]); got.Err == nil || got.Err.Kind != wire.KindConflict {
		t.Errorf("another batch of the same number: %+v", got)
	}
}

func TestUnknownSessionAndGapAreFenced(t *testing.T) {
	h := mustHost(t, Config{})
	h.apply(openEntry(11, sessionA, 1000))
	for name, c := range map[string]struct {
		e    log.Entry
		code string
	}{
		"never opened": {batchEntry(12, sessionB, 1, 1000, rec{value: "a"}), CodeSessionUnknown},
		"gap":          {batchEntry(13, sessionA, 2, 1000, rec{value: "a"}), CodeSequenceGap},
		"expired":      {batchEntry(14, sessionA, 1, 1001+sessionIdleMS, rec{value: "a"}), CodeSessionUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			h := mustHost(t, Config{})
			h.apply(openEntry(11, sessionA, 1000))
			got := result(t, h.apply(c.e)[0])
			if got.Err == nil || got.Err.Kind != wire.KindFenced || got.Err.Code != c.code {
				t.Errorf("got %+v", got)
			}
			if h.p.Next() != 0 {
				t.Error("stored")
			}
		})
	}
}

func TestClosedSessionIsUnknown(t *testing.T) {
	h := mustHost(t, Config{})
	h.apply(openEntry(11, sessionA, 1000), batchEntry(12, sessionA, 1, 1000, rec{value: "a"}))
	res := h.apply(log.Entry{Index: 13, Data: EncodeCloseSession(nil, sessionA, 1000)}, batchEntry(14, sessionA, 2, 1000, rec{value: "a"}))
	if res[0] != (SessionResult{Last: 1, Stamp: 1000}) {
		t.Errorf("closed: %+v", res[0])
	}
	if got := result(t, res[1]); got.Err == nil || got.Err.Code != CodeSessionUnknown {
		t.Errorf("got %+v", got)
	}
}

func TestOpeningASessionAgainChangesNothing(t *testing.T) {
	h := mustHost(t, Config{})
	res := h.apply(openEntry(11, sessionA, 1000), batchEntry(12, sessionA, 1, 1000, rec{value: "a"}), openEntry(13, sessionA, 1005))
	if res[2] != (SessionResult{Last: 1, Stamp: 1005}) {
		t.Errorf("got %+v", res[2])
	}
}

func TestTooManySessionsEndTheLongestIdle(t *testing.T) {
	h := mustHost(t, Config{})
	id := func(i int) SessionID { return SessionID{byte(i >> 8), byte(i), 1} }
	var entries []log.Entry
	for i := range maxSessions {
		entries = append(entries, openEntry(uint64(11+i), id(i), int64(1000+i/2)))
	}
	h.apply(entries...)
	next := uint64(11 + maxSessions)
	h.apply(batchEntry(next, id(0), 1, 2000, rec{value: "a"}), openEntry(next+1, sessionA, 2000))
	if h.p.st.sessions.open[id(0)] == nil || h.p.st.sessions.open[id(1)] != nil || len(h.p.st.sessions.open) != maxSessions {
		t.Errorf("%d sessions; not the longest idle was ended", len(h.p.st.sessions.open))
	}
	before := h.dump()
	h.close()
	h.open()
	if after := h.dump(); after != before {
		t.Error("sessions differ after a restart")
	}
}

func TestOutcomesBeyondThoseKeptAreUnknown(t *testing.T) {
	h := mustHost(t, Config{})
	h.apply(openEntry(11, sessionA, 1000))
	for i := range uint64(outcomesKept + 1) {
		h.apply(batchEntry(12+i, sessionA, 1+i, 1000, rec{value: "a"}))
	}
	h.close()
	h.open()
	res := h.apply(batchEntry(100, sessionA, 1, 1000, rec{value: "a"}), batchEntry(101, sessionA, 2, 1000, rec{value: "a"}))
	if got := result(t, res[0]); got.Err == nil || got.Err.Kind != wire.KindOutcomeUnknown {
		t.Errorf("the oldest: %+v", got)
	}
	if got := result(t, res[1]); got.Err != nil || !got.Retry || got.Base != 1 {
		t.Errorf("the oldest kept: %+v", got)
	}
}

func TestMemoryOfDuplicatesIsBounded(t *testing.T) {
	h := mustHost(t, Config{})
	recs := make([]rec, dupsKept/2+1)
	for i := range recs {
		recs[i] = rec{id: 1}
	}
	h.apply(openEntry(11, sessionA, 1000))
	for i := range uint64(3) {
		h.apply(batchEntry(12+i, sessionA, 1+i, 1000, recs...))
	}
	if n := len(h.p.st.sessions.open[sessionA].outcomes); n != 1 {
		t.Errorf("%d outcomes kept", n)
	}
	before := h.dump()
	h.close()
	h.open()
	if h.dump() != before {
		t.Error("differs after a restart")
	}
}

func TestForgottenDuplicatesMakeRoomForOutcomes(t *testing.T) {
	h := mustHost(t, Config{})
	many := make([]rec, dupsKept)
	for i := range many {
		many[i] = rec{id: 1}
	}
	h.apply(openEntry(11, sessionA, 1000), batchEntry(12, sessionA, 1, 1000, many...))
	for i := range uint64(outcomesKept - 1) {
		h.apply(batchEntry(13+i, sessionA, 2+i, 1000, rec{value: "a"}))
	}
	h.apply(batchEntry(100, sessionA, 1+outcomesKept, 1000, rec{id: 1}, rec{id: 1}))
	if n := len(h.p.st.sessions.open[sessionA].outcomes); n != outcomesKept {
		t.Errorf("%d outcomes kept", n)
	}
}

func TestDuplicatesAreSkippedAndReported(t *testing.T) {
	h := mustHost(t, Config{})
	res := h.apply(openEntry(11, sessionA, 1000), openEntry(12, sessionB, 1000),
		batchEntry(13, sessionA, 1, 1000, rec{id: 1, payload: 7, value: "a"}, rec{id: 2, payload: 7, value: "b"}),
		batchEntry(14, sessionB, 1, 1000, rec{value: "c"}, rec{id: 2, payload: 7, value: "b"}, rec{id: 1, payload: 8, value: "x"},
			rec{id: 3, value: "d"}, rec{id: 3, value: "d"}),
		batchEntry(15, sessionB, 2, 1000, rec{id: 2, payload: 7, value: "b"}))
	got := result(t, res[3])
	if want := (BatchResult{Base: 2, Count: 5, Stamp: 1000, Dups: []Dup{{1, 1, false}, {2, 0, true}, {4, 3, false}}}); !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	if all := result(t, res[4]); len(all.Dups) != 1 || h.p.Next() != 4 {
		t.Errorf("all duplicates: %+v, next %d", all, h.p.Next())
	}
	events := append(h.read(0), h.read(2)...)
	if fmt.Sprint(events) != "[{0 1000 a} {1 1000 b} {2 1000 c} {3 1000 d} {2 1000 c} {3 1000 d}]" {
		t.Errorf("read %v", events)
	}
}

func TestIdentityIsForgottenAfterItsWindow(t *testing.T) {
	h := mustHost(t, Config{})
	h.apply(openEntry(11, sessionA, 0), batchEntry(12, sessionA, 1, 0, rec{id: 1, value: "a"}))
	res := h.apply(batchEntry(13, sessionA, 2, 10*minuteMS, rec{id: 1, value: "a"}), batchEntry(14, sessionA, 3, 11*minuteMS, rec{id: 1, value: "a"}))
	if got := result(t, res[0]); len(got.Dups) != 1 {
		t.Errorf("within: %+v", got)
	}
	if got := result(t, res[1]); len(got.Dups) != 0 || got.Base != 1 {
		t.Errorf("after: %+v", got)
	}
	left := 0
	if err := h.store.Scan(h.p.keys.plain(keyIdentity), func(_, _ []byte) error { left++; return nil }); err != nil || left != 1 {
		t.Errorf("%d identities in the store, %v", left, err)
	}
}

func TestTrimMovesTheStart(t *testing.T) {
	h := mustHost(t, Config{})
	h.apply(openEntry(11, sessionA, 1000))
	for i := range uint64(50) {
		h.apply(batchEntry(12+i, sessionA, 1+i, int64(1000+i), rec{value: fmt.Sprintf("%0200d", 2*i)}, rec{value: "second"}))
	}
	h.sync(true)
	before := len(h.files())
	res := h.apply(log.Entry{Index: 100, Data: EncodeTrim(nil, 41, 2000)}, log.Entry{Index: 101, Data: EncodeTrim(nil, 10, 2000)})
	if res[0] != (TrimResult{Start: 41}) || res[1] != (TrimResult{Start: 41}) {
		t.Errorf("results %+v", res)
	}
	h.sync(true)
	if after := len(h.files()); after >= before {
		t.Errorf("%d files, before %d", after, before)
	}
	if _, err := h.p.Read(40, 100); wire.CodeOf(err) != wire.CodeOffsetExpired {
		t.Errorf("below the start: %v", err)
	}
	if ev := h.read(41); ev[0].value != "second" {
		t.Errorf("inside a batch: %v", ev)
	}
	if res := h.apply(log.Entry{Index: 102, Data: EncodeTrim(nil, 1<<40, 2000)}); res[0] != (TrimResult{Start: 100}) {
		t.Errorf("beyond the end: %+v", res)
	}
	h.sync(true)
	h.close()
	h.open()
	if h.p.Start() != 100 || h.p.Next() != 100 {
		t.Errorf("after a restart [%d, %d)", h.p.Start(), h.p.Next())
	}
	h.apply(batchEntry(103, sessionA, 51, 3000, rec{value: "z"}))
	if ev := h.read(100); ev[0].value != "z" {
		t.Errorf("read %v", ev)
	}
}

func TestRetentionProposesByAgeAndBySize(t *testing.T) {
	h := mustHost(t, Config{})
	h.apply(openEntry(11, sessionA, 1000))
	if _, ok := h.p.RetentionTrim(1 << 50); ok {
		t.Error("an empty partition is trimmed")
	}
	for i := range uint64(60) {
		h.apply(batchEntry(12+i, sessionA, 1+i, int64(1000+10*i), rec{value: fmt.Sprintf("%010000d", i)}))
	}
	limits := func(index uint64, age, size int64) {
		t.Helper()
		raw, err := EncodeConfig(nil, Limits{RetentionMS: age, RetentionBytes: size}, 0)
		if err != nil {
			t.Fatal(err)
		}
		h.apply(log.Entry{Index: index, Data: raw})
	}
	if start, ok := h.p.RetentionTrim(1 << 50); ok {
		t.Errorf("without limits: %d", start)
	}
	limits(100, 100, 0)
	if start, ok := h.p.RetentionTrim(1300); !ok || start != 20 {
		t.Errorf("by age: %d %v", start, ok)
	}
	limits(101, 0, 200_000)
	if start, ok := h.p.RetentionTrim(1300); ok {
		t.Errorf("marks of the former limits are 64 MiB apart, yet: %d", start)
	}
	for i := uint64(60); i < 100; i++ {
		h.apply(batchEntry(110+i, sessionA, 1+i, int64(1000+10*i), rec{value: fmt.Sprintf("%010000d", i)}))
	}
	if start, ok := h.p.RetentionTrim(1300); !ok || start < 80 || start > 95 {
		t.Errorf("by size: %d %v", start, ok)
	}
}

func TestRetentionBySizeCountsWhatIsStored(t *testing.T) {
	h := mustHost(t, Config{})
	h.apply(openEntry(11, sessionA, 1000))
	for i := range uint64(50) {
		var recs []rec
		for j := range byte(100) {
			recs = append(recs, rec{id: 1 + j, value: fmt.Sprint(i, j)})
		}
		h.apply(batchEntry(12+i, sessionA, 1+i, 1000+int64(i)*11*minuteMS, recs...))
	}
	if counted := int64(h.p.st.sizes.total); counted != h.p.Bytes() {
		t.Errorf("counted %d bytes, there are %d", counted, h.p.Bytes())
	}
}

func TestWaitIsWokenByTheNextEvent(t *testing.T) {
	h := mustHost(t, Config{})
	h.apply(openEntry(11, sessionA, 1000))
	woken := h.p.Wait(0)
	h.apply(log.Entry{Index: 12, Data: EncodeClock(nil, 1001)})
	select {
	case <-woken:
		t.Error("woken by nothing")
	default:
	}
	h.apply(batchEntry(13, sessionA, 1, 1001, rec{value: "a"}))
	<-woken
	<-h.p.Wait(0)
	woken = h.p.Wait(1)
	if err := h.p.Close(); err != nil {
		t.Fatal(err)
	}
	<-woken
	if _, err := h.p.Read(0, 1); wire.KindOf(err) != wire.KindClosed {
		t.Errorf("read after close: %v", err)
	}
	if err := h.p.Sync(); wire.KindOf(err) != wire.KindClosed {
		t.Errorf("sync after close: %v", err)
	}
}

func TestClockForgetsWhatOnlyTimeEnds(t *testing.T) {
	h := mustHost(t, Config{Metrics: NewMetrics(nil)})
	h.apply(openEntry(11, sessionA, 1000), batchEntry(12, sessionA, 1, 1000, rec{id: 1, value: "a"}))
	if h.p.ClockDue(1000 + sessionIdleMS) {
		t.Error("due while the session lives")
	}
	if !h.p.ClockDue(1001 + sessionIdleMS) {
		t.Error("not due")
	}
	h.apply(log.Entry{Index: 13, Data: EncodeClock(nil, 1001+sessionIdleMS)})
	if h.p.ClockDue(1<<50) || len(h.p.st.sessions.open) != 0 || len(h.p.st.window.buckets) != 0 {
		t.Error("something is still held")
	}
}

func TestDamagedAndUnknownEntriesStopTheReplica(t *testing.T) {
	h := mustHost(t, Config{})
	good := batchEntry(12, sessionA, 1, 1, rec{value: "a"})
	bad := append([]byte(nil), good.Data...)
	bad[len(bad)-1] ^= 1
	for name, data := range map[string][]byte{
		"damaged": bad, "short": {1}, "unknown kind": {99, 1, 0, 0, 0, 0, 0, 0, 0, 0}, "unknown version": {6, 2, 0, 0, 0, 0, 0, 0, 0, 0},
		"trailing": append(EncodeClock(nil, 1), 0),
	} {
		b := h.store.NewBatch()
		if _, err := h.p.Apply(log.Entry{Index: 12, Data: data}, b); wire.KindOf(err) != wire.KindCorrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSpecRoundTrips(t *testing.T) {
	want := Spec{Version: 1, Name: "a", Partition: 3, Limits: Limits{DedupeWindowMS: 1, RetentionMS: -1, RetentionBytes: 5, MaxEventBytes: 6, Replicas: 3, MinCopies: 2}}
	want.Stream[3], want.Seed[4], want.Range.Lo, want.Range.Hi = 1, 2, 3, 4
	raw, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseSpec(raw); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := ParseSpec(raw[:len(raw)-1]); wire.KindOf(err) != wire.KindCorrupt {
		t.Errorf("cut off: %v", err)
	}
	if _, err := (Spec{Limits: Limits{DedupeWindowMS: -1}}).Encode(); wire.KindOf(err) != wire.KindInvalid {
		t.Errorf("invalid: %v", err)
	}
}

func TestDestroyLeavesNothing(t *testing.T) {
	h := newHost(t, t.TempDir(), testDisk(), Config{Limit: NewNodeLimit(100)})
	h.apply(openEntry(11, sessionA, 1000), batchEntry(12, sessionA, 1, 1000, rec{id: 1, value: "a"}))
	b := h.store.NewBatch()
	if err := h.p.Destroy(b); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := h.store.Scan(testPrefix, func(k, _ []byte) error { return fmt.Errorf("key %q is left", k) }); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(h.p.dir); !os.IsNotExist(err) {
		t.Errorf("the files are left: %v", err)
	}
	if h.cfg.Limit.Held() != 0 {
		t.Errorf("%d identities held", h.cfg.Limit.Held())
	}
}

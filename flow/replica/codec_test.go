package replica

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

func sampleMessages() []*pb.Message {
	es := newEntries(2)
	for i, e := range es {
		*e.Index, *e.Term, e.Data = uint64(11+i), 3, bytes.Repeat([]byte{byte(i)}, 5)
	}
	cs := &pb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{3}, AutoLeave: new(false)}
	return []*pb.Message{
		{Type: pb.MsgApp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(4)), LogTerm: new(uint64(3)),
			Index: new(uint64(10)), Commit: new(uint64(9)), Entries: es},
		{Type: pb.MsgHeartbeatResp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(4)), Context: make([]byte, 8)},
		{Type: pb.MsgAppResp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(4)), Reject: new(true), RejectHint: new(uint64(5))},
		{Type: pb.MsgSnap.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(4)),
			Snapshot: &pb.Snapshot{Metadata: &pb.SnapshotMetadata{Index: new(uint64(8)), Term: new(uint64(2)), ConfState: cs}}},
	}
}

func TestFrameRoundTrip(t *testing.T) {
	g := ring.GroupID{1, 2, 3}
	frame := []byte{frameVersion}
	want := sampleMessages()
	for _, m := range want {
		frame = appendEnvelope(frame, g, m)
	}
	var got []envelope
	if err := decodeFrame(frame, func(e envelope) { got = append(got, e) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d messages", len(got))
	}
	for i, e := range got {
		if e.group != g || e.from != 1 || e.to != 2 {
			t.Fatalf("addressed %+v", e)
		}
		if a, b := appendMessage(nil, e.msg), appendMessage(nil, want[i]); !bytes.Equal(a, b) {
			t.Fatalf("message %d: got %v, want %v", i, e.msg, want[i])
		}
	}
}

func TestForgedMessagesAreRefused(t *testing.T) {
	for name, edit := range map[string]func(m *pb.Message){
		"a local message":          func(m *pb.Message) { m.Type = pb.MsgHup.Enum() },
		"a proposal":               func(m *pb.Message) { m.Type = pb.MsgProp.Enum() },
		"no term":                  func(m *pb.Message) { m.Term = nil },
		"a storage thread":         func(m *pb.Message) { m.From = new(^uint64(0)) },
		"a gap in the entries":     func(m *pb.Message) { m.Index = new(uint64(11)) },
		"a heartbeat with entries": func(m *pb.Message) { m.Type = pb.MsgHeartbeat.Enum() },
		"a snapshot of nothing":    func(m *pb.Message) { m.Type = pb.MsgSnap.Enum() },
	} {
		m := proto.Clone(sampleMessages()[0]).(*pb.Message)
		edit(m)
		if err := decodeFrame(appendEnvelope([]byte{frameVersion}, ring.GroupID{1}, m), func(envelope) { t.Errorf("%s was delivered", name) }); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestBirthRoundTrip(t *testing.T) {
	want := Birth{Group: ring.GroupID{1}, Kind: KindCatalog, Spec: []byte("x"), Self: 2, Empty: true,
		Members: []Member{{ID: 1, Node: ring.NodeID{1}}, {ID: 2, Node: ring.NodeID{2}, Learner: true}}}
	got, err := decodeBirth(encodeBirth(want))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestSnapshotFramesRoundTrip(t *testing.T) {
	h := snapshotHello{group: ring.GroupID{1}, from: 1, to: 2, least: 3, have: []byte("h")}
	if got, err := decodeSnapshotHello(h.encode()); err != nil || !reflect.DeepEqual(got, h) {
		t.Fatalf("%+v, %v", got, err)
	}
	st := bornState(Birth{Members: []Member{{ID: 1, Node: ring.NodeID{1}}, {ID: 2, Node: ring.NodeID{2}, Learner: true}}})
	st.applied = log.Mark{Index: 100, Term: 7}
	got, err := decodeMeta(st.encodeMeta())
	if err != nil || got.applied != st.applied || got.lastID != 2 || !reflect.DeepEqual(got.nodes, st.nodes) || !proto.Equal(got.conf, st.conf) {
		t.Fatalf("%+v, %v", got, err)
	}
}

func FuzzDecodeFrame(f *testing.F) {
	frame := []byte{frameVersion}
	for _, m := range sampleMessages() {
		frame = appendEnvelope(frame, ring.GroupID{1}, m)
	}
	f.Add(frame)
	f.Fuzz(func(t *testing.T, b []byte) { _ = decodeFrame(b, func(e envelope) { appendMessage(nil, e.msg) }) })
}

func FuzzDecodeRecords(f *testing.F) {
	b := Birth{Group: ring.GroupID{1}, Members: []Member{{ID: 1, Node: ring.NodeID{1}}}, Self: 1}
	st := bornState(b)
	f.Add(encodeBirth(b))
	f.Add(st.encodeMeta())
	f.Add(st.encodeConf())
	f.Add(snapshotHello{have: []byte("x")}.encode())
	f.Add(encodeConfContext(b.Members))
	f.Fuzz(func(t *testing.T, raw []byte) {
		_, _ = decodeBirth(raw)
		_, _ = decodeMeta(raw)
		_, _ = decodeSnapshotHello(raw)
		_, _ = decodeConfContext(raw)
		_ = new(state).decodeConf(raw)
	})
}

package flow

import (
	"context"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// importRequest is a MethodImport request: without batches it begins an import, with them it brings the next.
type importRequest struct {
	Group   ring.GroupID `msgpack:"g"`
	Export  [16]byte     `msgpack:"x"`
	Base    uint64       `msgpack:"b,omitempty"`
	Start   uint64       `msgpack:"s,omitempty"`
	End     uint64       `msgpack:"e,omitempty"`
	Batches []byte       `msgpack:"d,omitempty"` // header, payload, header, payload, …
}

type importResponse struct {
	Next uint64 `msgpack:"n"` // offset of the batch that is wanted next, or the end
}

// HandleImport answers MethodImport on the partition's owner, once what came is committed.
func (b *Broker) HandleImport(ctx context.Context, _ ring.NodeID, body []byte) ([]byte, error) {
	var req importRequest
	if err := wire.Unmarshal(body, &req); err != nil {
		return nil, err
	}
	if err := b.cfg.RequireVersion(ctx, wire.Version2); err != nil {
		return nil, err
	}
	g, err := b.localOwner(req.Group)
	if err != nil {
		return nil, err
	}
	p, ok := g.StateMachine().(*partition.Partition)
	if !ok {
		return nil, wire.Errorf(wire.KindInvalid, "", "group %s is no partition", req.Group)
	}
	if err := (&served{b: b, group: g, part: p}).admit(ctx); err != nil {
		return nil, err
	}
	entries, err := importEntries(&req)
	if err != nil {
		return nil, err
	}
	size := min(int64(len(req.Batches)), b.cfg.OwnerBudget.Limit())
	if err := b.cfg.OwnerBudget.Reserve(ctx, size); err != nil {
		return nil, err
	}
	defer b.cfg.OwnerBudget.Release(size)
	resp, err := b.proposeImport(ctx, g, entries)
	if err != nil {
		return nil, err
	}
	return wire.Marshal(&resp)
}

// importEntries checks what came: a batch that cannot be read back would stop every replica.
func importEntries(req *importRequest) ([][]byte, error) {
	if len(req.Batches) == 0 {
		entry, err := partition.EncodeImportBegin(nil, partition.Import{Export: req.Export, Base: req.Base, Start: req.Start, End: req.End})
		return [][]byte{entry}, err
	}
	batches, err := split(req.Batches)
	if err != nil {
		return nil, err
	}
	entries := make([][]byte, len(batches))
	for i := range batches {
		if err := batch.VerifyPayload(&batches[i].Meta, batches[i].Payload); err != nil {
			return nil, err
		}
		entries[i] = partition.EncodeImportBatch(nil, req.Export, &batches[i].Meta, batches[i].Payload)
	}
	return entries, nil
}

// proposeImport proposes all entries, then waits for what became of each.
func (b *Broker) proposeImport(ctx context.Context, g *replica.Group, entries [][]byte) (importResponse, error) {
	outcomes := make(chan replica.Outcome, len(entries))
	var failed error
	proposed := 0
	for _, entry := range entries {
		if failed = b.proposeOne(ctx, g, entry, outcomes); failed != nil {
			break
		}
		proposed++
	}
	var resp importResponse
	for range proposed {
		out := <-outcomes // it always comes, at the latest when the group closes
		res, ok := out.Result.(partition.ImportResult)
		switch {
		case failed != nil:
		case out.Err != nil:
			failed = out.Err
		case !ok:
			failed = wire.Errorf(wire.KindInternal, "", "partition answered %T", out.Result)
		case res.Err != nil:
			failed = res.Err
		default:
			resp.Next = max(resp.Next, res.Next)
		}
	}
	return resp, failed
}

// proposeOne waits while the group's bound on uncommitted bytes is reached.
func (b *Broker) proposeOne(ctx context.Context, g *replica.Group, entry []byte, outcomes chan<- replica.Outcome) error {
	for {
		err := g.Propose(entry, func(out replica.Outcome) { outcomes <- out })
		if wire.KindOf(err) != wire.KindNoCredit {
			return err
		}
		b.metrics.ownerWaits.Inc()
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

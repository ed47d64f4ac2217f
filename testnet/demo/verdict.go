package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/check"
)

// readBack reads the whole stream through every node, and counts values that are not what was sent.
func (s *story) readBack(ctx context.Context) (corrupt int, err error) {
	s.say("Reading everything back through each of the %d nodes", s.mesh.Nodes())
	counts := make([]int, s.mesh.Nodes())
	bad := make([]int, s.mesh.Nodes())
	g, gctx := errgroup.WithContext(ctx)
	for i := range counts {
		g.Go(func() (err error) {
			counts[i], bad[i], err = s.readThrough(gctx, i)
			if err != nil {
				err = fmt.Errorf("read through %s: %w", s.mesh.Name(i), err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	for i, n := range counts {
		s.say("  %d events through %s", n, s.mesh.Name(i))
		corrupt += bad[i]
	}
	return corrupt, nil
}

// readThrough reads the stream through one node alone.
func (s *story) readThrough(ctx context.Context, node int) (events, corrupt int, err error) {
	c, err := client.New(client.Config{Servers: []string{s.mesh.Address(node)}})
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	sub, err := c.Subscribe(ctx, s.stream, client.SubscribeRequest{From: "earliest", UntilEnd: true})
	if err != nil {
		return 0, 0, err
	}
	defer sub.Close()
	reader := "reader at " + s.mesh.Name(node)
	for {
		chunk, err := sub.Next()
		if err == io.EOF {
			s.history.Final(reader)
			return events, corrupt, ctx.Err()
		}
		if err != nil {
			return events, corrupt, err
		}
		for i := range chunk.Events {
			events++
			if !s.read(reader, &chunk.Events[i]) {
				corrupt++
			}
		}
	}
}

// read records what a reader was given, and reports whether it is what was sent.
func (s *story) read(reader string, ev *client.Received) bool {
	publisher, key, seq, ok := parseIdentity(ev.Source, ev.ID)
	s.mu.Lock()
	sum, sent := s.values[ev.Source+"#"+ev.ID]
	s.mu.Unlock()
	s.history.Read(reader, ring.PartitionID(ev.Partition), ev.Offset, publisher, key, seq)
	return ok && sent && sum == sha256.Sum256(ev.Value) && ev.Key != nil && *ev.Key == key
}

// verdict holds the history against the promises and prints a line for each, below what else there is to tell.
func (s *story) verdict(corrupt int, told ...string) (broken bool) {
	violations := check.Check(s.history)
	acked, _, unknown, reads := s.history.Counts()
	fmt.Fprintf(s.out, "\n%d events acknowledged, %d with an unknown outcome, %d reads through %d nodes.\n", acked, unknown, reads, s.mesh.Nodes())
	for _, line := range told {
		fmt.Fprintln(s.out, line)
	}
	fmt.Fprintln(s.out)
	named := map[string]int{}
	for _, v := range violations {
		named[v.Name]++
	}
	promises := []struct{ text, name string }{
		{"nothing acknowledged is lost", "lost-write"},
		{"nothing is stored twice", "duplicate"},
		{"each key is in order", "order"},
		{"one place names one event, for every reader", "inconsistent-offset"},
		{"no reader skips an event", "skip"},
	}
	for _, p := range promises {
		mark := "holds "
		if named[p.name] > 0 {
			mark = "BROKEN"
		}
		delete(named, p.name)
		fmt.Fprintf(s.out, "  %s  %s\n", mark, p.text)
	}
	mark := "holds "
	if corrupt > 0 {
		mark = fmt.Sprintf("BROKEN (%d)", corrupt)
	}
	fmt.Fprintf(s.out, "  %s  every value and key is what was sent\n", mark)
	for name, n := range named {
		fmt.Fprintf(s.out, "  BROKEN  %s (%d)\n", name, n)
	}
	fmt.Fprintln(s.out)
	if len(violations) > 0 || corrupt > 0 {
		fmt.Fprint(s.out, check.Format(violations))
		fmt.Fprintln(s.out, "Verdict: BROKEN")
		return true
	}
	fmt.Fprintf(s.out, "Verdict: all promises held (%.1f s)\n", time.Since(s.begin).Seconds())
	return false
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node/dev"
)

// devWait is how long a local mesh may take to become whole.
const devWait = 30 * time.Second

func (p *process) devCommand() *cobra.Command {
	var o dev.Options
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a local mesh to try Skein out",
		Long: "Run a mesh of separate processes on loopback until Ctrl-C. Node i, from 0, listens at base port + 10·i (HTTP),\n" +
			"+1 (QUIC) and +2 (gossip). Streams are created on their first publish. Without --data-dir everything is removed at the end.",
		Args:    arguments(),
		Example: "  skein dev\n  skein dev -n 5 --base-port 9400 --data-dir ./mesh",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Nodes < 1 {
				return usagef("-n %d: 1 or above is wanted", o.Nodes)
			}
			if o.BasePort < 1 {
				return usagef("--base-port %d: 1 or above is wanted", o.BasePort)
			}
			return p.dev(cmd.Context(), o)
		},
	}
	cmd.Flags().IntVarP(&o.Nodes, "nodes", "n", 3, "how many nodes")
	cmd.Flags().IntVar(&o.BasePort, "base-port", 8400, "HTTP port of the first node")
	cmd.Flags().StringVar(&o.DataDir, "data-dir", "", "keep the data and logs here (default: a temporary directory, removed at the end)")
	return cmd
}

func (p *process) dev(ctx context.Context, o dev.Options) (err error) {
	begin := time.Now()
	m, err := dev.Start(o)
	if err != nil {
		return err
	}
	// A second Ctrl-C does not wait for the nodes, and still leaves nothing behind.
	hurry := func() {
		for i := range m.Nodes() {
			_ = m.Kill(i) // Stop tells of a node that does not end
		}
	}
	p.hurry.Store(&hurry)
	defer func() {
		fmt.Fprintln(p.err, "stopping")
		err = errors.Join(err, m.Stop())
	}()
	wait, cancel := context.WithTimeoutCause(ctx, devWait, fmt.Errorf("the mesh is not whole after %v", devWait))
	defer cancel()
	if err := m.Wait(wait); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("%w (logs: %s)", err, m.DataDir())
	}
	p.devIntroduction(m, time.Since(begin))
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-m.Exits():
			fmt.Fprintf(p.err, "%s ended: %v\nThe others go on.\n", m.Name(e.Node), e.Err)
		}
	}
}

func (p *process) devIntroduction(m *dev.Mesh, took time.Duration) {
	nodes := "nodes"
	if m.Nodes() == 1 {
		nodes = "node"
	}
	fmt.Fprintf(p.out, "A mesh of %d %s is up (%.1f s).\n\n", m.Nodes(), nodes, took.Seconds())
	for i := range m.Nodes() {
		fmt.Fprintf(p.out, "  %s  http://%s  pid %d  log %s\n", p.bold(m.Name(i)), m.Address(i), m.PID(i), m.LogPath(i))
	}
	last := m.Address(m.Nodes() - 1)
	fmt.Fprintf(p.out, "\nPublish through one node, read through another, and look around:\n\n"+
		"  curl -d 'hello' 'http://%s/v1/streams/greetings/events?key=me' -H 'Content-Type: text/plain'\n"+
		"  curl 'http://%s/v1/streams/greetings/events?from=earliest&until=end' -H 'Accept: application/x-ndjson'\n"+
		"  skein mesh members --server %s\n\n", m.Address(0), last, m.Address(0))
	if m.Nodes() >= 3 {
		fmt.Fprintf(p.out, "Then kill a node and do it again: kill -9 %d\n", m.PID(1))
	}
	fmt.Fprintf(p.out, "Add a node, in another terminal, to have one to drain; stop it before the mesh:\n\n  skein %s\n\n", strings.Join(m.JoinArgs(), " "))
	fmt.Fprintf(p.out, "All nodes for the command line: export SKEIN_SERVER=%s\nCtrl-C stops the mesh.\n", strings.Join(m.Addresses(), ","))
}

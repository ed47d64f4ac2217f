package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node"
	"github.com/skeinmesh/skein/node/config"
)

func (p *process) keygenCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "keygen",
		Short:   "Print a new secret for a mesh",
		Long:    "Print a new random secret. All nodes of a mesh share one; keep it in a file that only the node's user can read.",
		Example: "  (umask 077; skein keygen > skein.secret)\n  skein node --secret-file skein.secret --found",
		Args:    arguments(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(p.out, config.NewSecret().Text())
			return err
		},
	}
}

func (p *process) versionCommand() *cobra.Command {
	var o outputFlag
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			if err := o.check(); err != nil {
				return err
			}
			v := versionInfo()
			return p.print(o, v, func() error {
				commit := v.Commit
				if commit != "" {
					commit = " " + commit
				}
				_, err := fmt.Fprintf(p.out, "skein %s%s %s %s\n", v.Version, commit, v.Go, v.Platform)
				return err
			})
		},
	}
	o.add(cmd)
	return cmd
}

type version struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func versionInfo() version {
	v := version{Version: node.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				v.Commit = s.Value[:12]
			}
		}
	}
	return v
}

func (p *process) healthCommand() *cobra.Command {
	var s serverFlags
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a node whether it takes traffic",
		Long: "Ask a node whether it takes traffic: exit code 0 and \"ok\", or 1 and the reason. Of several addresses only the\n" +
			"first is asked. Fit for container health checks.",
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.client(p, false)
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if err := c.Ready(ctx); err != nil {
				return err
			}
			_, err = fmt.Fprintln(p.out, "ok")
			return err
		},
	}
	s.add(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long to wait for the answer")
	return cmd
}

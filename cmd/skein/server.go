package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/config"
)

const defaultServer = "127.0.0.1:8400"

// serverFlags are common to all commands that talk to a mesh.
type serverFlags struct {
	servers []string
	context string
}

func (s *serverFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&s.servers, "server", nil, "address of a node, several are tried in turn (SKEIN_SERVER; default the context, else "+defaultServer+")")
	cmd.Flags().StringVar(&s.context, "context", "", "name of a mesh in the contexts file (SKEIN_CONTEXT)")
}

// client is one of the mesh that config names.
func (s *serverFlags) client(p *process, patient bool) (*client.Client, error) {
	cfg, err := s.config(p, patient)
	if err != nil {
		return nil, err
	}
	return newClient(cfg)
}

// config resolves the addresses: flag, then environment, then context, then the default. A patient client goes on trying to connect,
// and says so; the other one gives up at once.
func (s *serverFlags) config(p *process, patient bool) (client.Config, error) {
	cfg := client.Config{Servers: s.servers, GiveUpUnreachable: !patient}
	if env := p.getenv("SKEIN_SERVER"); len(cfg.Servers) == 0 && env != "" && s.context == "" {
		cfg.Servers = strings.Split(env, ",")
	}
	if len(cfg.Servers) == 0 {
		ctx, ok, err := s.pick(p)
		if err != nil {
			return cfg, usageError{err}
		}
		if ok {
			cfg.Servers, cfg.Token = ctx.Servers, ctx.Token
		} else {
			cfg.Servers = []string{defaultServer}
		}
	}
	if patient {
		cfg.OnRetry = p.reportRetries()
	}
	return cfg, nil
}

// newClient makes a client; a wrong address is the command line's fault.
func newClient(cfg client.Config) (*client.Client, error) {
	c, err := client.New(cfg)
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

func (s *serverFlags) pick(p *process) (config.Context, bool, error) {
	name := s.context
	if name == "" {
		name = p.getenv("SKEIN_CONTEXT")
	}
	path, err := config.ContextsPath()
	if err != nil {
		if name == "" {
			return config.Context{}, false, nil // no home, no contexts
		}
		return config.Context{}, false, err
	}
	all, err := config.LoadContexts(path)
	if err != nil {
		return config.Context{}, false, err
	}
	ctx, ok, err := all.Pick(name)
	if err != nil {
		return ctx, ok, fmt.Errorf("%s: %w", path, err)
	}
	return ctx, ok, nil
}

// reportRetries tells of failed tries: at once, then after one more second, two, four, up to half a minute. A mesh that elects an
// owner fails many tries within one second.
func (p *process) reportRetries() func(error, time.Duration) {
	var mu sync.Mutex
	var last time.Time
	var gap time.Duration
	return func(err error, _ time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		since := time.Since(last)
		if since < gap {
			return
		}
		if since > time.Minute {
			gap = 0 // another trouble than the last
		}
		last, gap = time.Now(), min(max(2*gap, time.Second), 30*time.Second)
		fmt.Fprintf(p.err, "skein: %v; trying again\n", err)
	}
}

// requestTimeout bounds commands that ask one question.
const requestTimeout = 15 * time.Second

// questionContext ends after requestTimeout, with words for people.
func questionContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, requestTimeout, fmt.Errorf("no answer within %v", requestTimeout))
}

// ask runs one question to the mesh within requestTimeout.
func (p *process) ask(cmd *cobra.Command, s *serverFlags, o *outputFlag, f func(ctx context.Context, c *client.Client) error) error {
	if o != nil {
		if err := o.check(); err != nil {
			return err
		}
	}
	c, err := s.client(p, false)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := questionContext(cmd.Context())
	defer cancel()
	return f(ctx, c)
}

// colour reports whether stdout takes colours.
func (p *process) colour() bool {
	f, ok := p.out.(*os.File)
	return ok && isTerminal(f) && p.getenv("NO_COLOR") == "" && p.getenv("TERM") != "dumb"
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/skeinmesh/skein/node"
	"github.com/skeinmesh/skein/node/config"
)

func (p *process) nodeCommand() *cobra.Command {
	var file string
	var printConfig, keys bool
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run a node",
		Long: "Run a node until SIGTERM or SIGINT; a second signal ends it at once, SIGHUP reloads what can be reloaded.\n\n" +
			"Each setting comes from its flag, else its environment variable, else the file (--config), else its default.\n" +
			"The first node of a mesh takes --found, every other --join HOST:PORT; or all take the same --initial-members.",
		Args: arguments(),
		Example: "  skein node --found\n" +
			"  skein node --config /etc/skein/skein.yaml --join 10.0.0.1:8402\n" +
			"  skein node --initial-members 10.0.0.1,10.0.0.2,10.0.0.3 --secret-file skein.secret",
	}
	cmd.Flags().StringVar(&file, "config", p.getenv("SKEIN_CONFIG"), "configuration file, YAML or JSON (SKEIN_CONFIG)")
	cmd.Flags().BoolVar(&printConfig, "print-config", false, "print the configuration with the source of each value (secrets masked), and exit")
	cmd.Flags().BoolVar(&keys, "config-keys", false, "print every key with its meaning, default and environment variable, and exit")
	addKeyFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if keys {
			_, err := io.WriteString(p.out, config.Reference())
			return err
		}
		sources := config.Sources{File: file, Environ: p.environ, Flags: givenKeys(cmd.Flags()), Version: node.Version}
		cfg, err := config.Load(sources)
		if err != nil {
			return usageError{err}
		}
		if printConfig {
			for _, w := range cfg.Warnings {
				fmt.Fprintf(p.err, "skein: warning: %s\n", w)
			}
			return cfg.Print(p.out)
		}
		return p.runNode(cmd.Context(), cfg, sources)
	}
	return cmd
}

// addKeyFlags makes a flag of each configuration key, so that none can be missing.
func addKeyFlags(flags *pflag.FlagSet) {
	for _, k := range config.Keys() {
		if k.NoFlag {
			continue
		}
		usage := k.Doc
		switch {
		case k.Fallback != "" && k.Default != "":
			usage += fmt.Sprintf(" (default %s; %s)", k.Default, k.Fallback)
		case k.Fallback != "" || k.Default != "" && !k.IsBool():
			usage += fmt.Sprintf(" (default %s)", k.Default+k.Fallback)
		}
		if k.Later != "" {
			usage += " (" + config.NotAvailable + ")"
		}
		flags.Var(&keyFlag{key: k}, k.Flag(), usage)
		if k.IsBool() {
			flags.Lookup(k.Flag()).NoOptDefVal = "true"
		}
	}
}

// keyFlag takes a key's value as text: what it means is decided where all sources meet.
type keyFlag struct {
	key  config.Key
	text string
}

func (f *keyFlag) Set(s string) error {
	f.text = s
	return nil
}
func (f *keyFlag) String() string { return f.text }
func (f *keyFlag) Type() string   { return f.key.Kind() }

func givenKeys(flags *pflag.FlagSet) map[string]string {
	given := map[string]string{}
	for _, k := range config.Keys() {
		if f := flags.Lookup(k.Flag()); f != nil && f.Changed {
			given[k.Name] = f.Value.String()
		}
	}
	return given
}

func (p *process) runNode(ctx context.Context, cfg config.Config, sources config.Sources) error {
	if err := cfg.CheckRole(); err != nil {
		return err
	}
	level := new(slog.LevelVar)
	level.Set(cfg.Log.SlogLevel())
	logger := slog.New(logHandler(p.err, cfg.Log.Format, level))
	for _, w := range cfg.Warnings {
		logger.Warn("configuration", "warning", w)
	}
	var running atomic.Pointer[node.Node]
	stop := onHangup(func() {
		if n := running.Load(); n != nil {
			reload(n, sources, level, logger)
		}
	})
	defer stop()
	guard, endGuard := context.WithCancel(ctx)
	var guarded sync.WaitGroup
	guarded.Go(func() { node.GuardHeap(guard, cfg.MemoryBudget) })
	defer guarded.Wait()
	defer endGuard()
	for {
		n, err := node.New(cfg, logger)
		if err != nil {
			return err
		}
		running.Store(n)
		if err := n.Run(ctx); !errors.Is(err, node.ErrGaveUp) || ctx.Err() != nil {
			return err
		}
		running.Store(nil)
		logger.Info("starting again as an empty node of the mesh")
	}
}

func logHandler(w io.Writer, format string, level slog.Leveler) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.NewJSONHandler(w, o)
	}
	return slog.NewTextHandler(w, o)
}

// onHangup calls f for each SIGHUP, one at a time, until stop, which waits for a call under way.
func onHangup(f func()) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	done, quit := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-signals:
				f()
			case <-quit:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(quit)
		<-done
	}
}

// reload reads the sources again and gives the node what it can take over. A configuration that is wrong changes nothing.
func reload(n *node.Node, sources config.Sources, level *slog.LevelVar, logger *slog.Logger) {
	fresh, err := config.Load(sources)
	if err != nil {
		logger.Error("reload refused, the old configuration stays", "error", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	level.Set(fresh.Log.SlogLevel())
	taken, restart := n.Reload(fresh)
	logger.Info("configuration reloaded", "changed", taken)
	if len(restart) > 0 {
		logger.Warn("some changes need a restart", "keys", restart)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/config"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitDamage = 3 // of the debug commands: they found damage, and showed what is sound
)

func main() {
	p := &process{in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ(), terminal: isTerminal(os.Stderr)}
	os.Exit(p.run(context.Background(), os.Args[1:]))
}

// process is the surroundings of one run of the program, replaced in tests.
type process struct {
	in       io.Reader
	out, err io.Writer
	environ  []string
	terminal bool // err is a terminal

	started bool // a command began its work: what fails now is no longer the command line's fault
	// hurry, where a command set it, is what the second signal does; the command then ends soon and in order.
	hurry atomic.Pointer[func()]
}

// usageError is a command line that makes no sense, found only after flags were parsed.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// codeError ends a command with an exit code of its own.
type codeError struct {
	error
	code int
}

// errReported ends a command with exit code 1 after it said why itself.
var errReported = errors.New("already reported")

func (p *process) run(ctx context.Context, args []string) int {
	ctx, stop := p.withSignals(ctx)
	defer stop()
	root := p.root()
	root.SetArgs(args)
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var usage usageError
	code := exitFailed
	if !p.started || errors.As(err, &usage) || errors.Is(err, config.ErrNoRole) {
		code = exitUsage
	}
	if own := (codeError{}); errors.As(err, &own) {
		code = own.code
	}
	if errors.Is(err, errReported) {
		return code
	}
	for _, line := range strings.Split(strings.TrimSpace(err.Error()), "\n") {
		fmt.Fprintf(p.err, "skein: %s\n", line)
	}
	p.hint(err)
	if !p.started || errors.As(err, &usage) {
		fmt.Fprintf(p.err, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
	return code
}

// hint says what to do about failures that have one remedy.
func (p *process) hint(err error) {
	switch client.CodeOf(err) {
	case client.CodeConnect:
		fmt.Fprintln(p.err, "Is a node running there? `skein dev` starts a mesh on this machine; --server or SKEIN_SERVER names another address.")
	case "stream-not-found":
		fmt.Fprintln(p.err, "`skein stream create STREAM` makes a stream; `skein stream list` shows those that are there.")
	}
}

// withSignals ends ctx at the first SIGINT or SIGTERM, and the process at the second, or at the third where a command has a way to hurry.
// stop waits for the listener.
func (p *process) withSignals(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	quit := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-signals:
				switch hurry := p.hurry.Load(); {
				case n == 0:
					cancel()
				case n == 1 && hurry != nil:
					(*hurry)()
				default:
					os.Exit(exitFailed)
				}
			case <-quit:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		<-done
		cancel()
	}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}

// getenv reads the environment the process was given.
func (p *process) getenv(name string) string {
	for _, kv := range p.environ {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// root builds the command tree.
func (p *process) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "skein",
		Short:         "A peer-to-peer event-stream mesh",
		Long:          "Skein is an event-stream mesh without a coordinator: run `skein dev` to try it on this machine.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          arguments(),
		PersistentPreRun: func(*cobra.Command, []string) {
			p.started = true
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddCommand(
		p.nodeCommand(), p.devCommand(),
		p.pubCommand(), p.subCommand(),
		p.streamCommand(), p.exportCommand(), p.importCommand(), p.meshCommand(),
		p.drainCommand(), p.cordonCommand(), p.uncordonCommand(), p.moveCommand(), p.transferCommand(),
		p.recoverCommand(), p.debugCommand(),
		p.healthCommand(), p.benchCommand(),
		p.keygenCommand(), p.versionCommand(),
	)
	// A command that only holds others shows its help; a word it does not know is a mistake.
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.HasSubCommands() && c.RunE == nil && c.Run == nil {
			c.Args = noSuchCommand
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	return root
}

// arguments wants the words named, "STREAM" or "[FILE...]", and says which one is missing.
func arguments(what ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		most := len(what)
		for i, w := range what {
			switch {
			case strings.HasSuffix(w, "...]"):
				most = max(most, len(args))
			case i >= len(args) && !strings.HasPrefix(w, "["):
				return fmt.Errorf("%s is missing", w)
			}
		}
		if len(args) > most {
			return fmt.Errorf("%q is one word too many", args[most])
		}
		return nil
	}
}

// noSuchCommand refuses words behind a command that only holds others.
func noSuchCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	msg := fmt.Sprintf("%q is no command of %q", args[0], c.CommandPath())
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		msg += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return errors.New(msg)
}

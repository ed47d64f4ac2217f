package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node/client"
)

func (p *process) exportCommand() *cobra.Command {
	var s serverFlags
	cmd := &cobra.Command{
		Use:   "export STREAM [FILE]",
		Short: "Copy a stream to a file: definition, events and offsets",
		Long: "Export copies a stream to a file, up to the end as it is when the export begins: its settings, and every event with its offset, time,\n" +
			"key, headers and identity. Publishing and reading go on meanwhile. Without FILE, or with -, the file goes to stdout.\n" +
			"FILE appears once it is complete, and is never overwritten. `skein import` makes a stream of it, on this or another mesh.",
		Args:    arguments("STREAM", "[FILE]"),
		Example: "  skein export orders orders.skein\n  skein export orders | ssh backup 'cat > orders.skein'",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := s.client(p, false)
		if err != nil {
			return err
		}
		defer c.Close()
		meter := p.meter("exported")
		name := fileArgument(args)
		if name == "-" {
			if f, ok := p.out.(*os.File); ok && isTerminal(f) {
				return usagef("an export is no text: name a FILE, or send it elsewhere than to the terminal")
			}
			_, err := c.Export(cmd.Context(), args[0], io.MultiWriter(p.out, meter))
			meter.end()
			return err
		}
		n, err := exportTo(name, func(w io.Writer) (int64, error) {
			return c.Export(cmd.Context(), args[0], io.MultiWriter(w, meter))
		})
		meter.end()
		if err == nil {
			fmt.Fprintf(p.err, "skein: stream %s exported to %s: %s\n", args[0], name, bytesText(n))
		}
		return err
	}
	s.add(cmd)
	return cmd
}

func fileArgument(args []string) string {
	if len(args) < 2 {
		return "-"
	}
	return args[1]
}

// exportTo writes a file that appears under its name only when it is complete and durable.
func exportTo(name string, write func(io.Writer) (int64, error)) (n int64, err error) {
	if _, err := os.Lstat(name); err == nil {
		return 0, usagef("%s exists; choose another name, or remove it first", name)
	}
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".partial-*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	buf := bufio.NewWriterSize(f, 1<<20)
	n, err = write(buf)
	if err = errors.Join(err, buf.Flush(), f.Sync(), f.Close()); err != nil {
		return n, err
	}
	return n, os.Rename(f.Name(), name)
}

func (p *process) importCommand() *cobra.Command {
	var s serverFlags
	var o outputFlag
	cmd := &cobra.Command{
		Use:   "import STREAM [FILE]",
		Short: "Make a stream of an exported file, with the same events at the same offsets",
		Long: "Import makes a stream of a file that `skein export` wrote. STREAM may be another name than it had, and must not exist. It is a new\n" +
			"incarnation: readers start anew, cursors of the exported stream do not fit. Nothing can be published to or read from it until all is\n" +
			"there. A damaged file leaves nothing. An import that was interrupted goes on when the same file is imported again, and until then\n" +
			"`skein stream delete` removes what came. Events older than the retention allows are trimmed soon after: see --retention.\n" +
			"Every node of the mesh must know imports: in a mesh that is being upgraded, they begin once the last node is.",
		Args:    arguments("STREAM", "[FILE]"),
		Example: "  skein import orders orders.skein\n  skein import orders-old orders.skein --retention none",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.check(); err != nil {
			return err
		}
		opts, err := importOptions(cmd)
		if err != nil {
			return err
		}
		c, err := s.client(p, true)
		if err != nil {
			return err
		}
		defer c.Close()
		file := p.in
		if name := fileArgument(args); name != "-" {
			f, err := os.Open(name)
			if err != nil {
				return usageError{err}
			}
			defer f.Close()
			file = f
		}
		meter := p.meter("sent")
		got, err := c.Import(cmd.Context(), args[0], meter.watch(file), opts)
		meter.end()
		if err != nil {
			return err
		}
		return p.print(o, got, func() error {
			_, err := fmt.Fprintf(p.out, "stream %s: %d events in %d partitions, %s\n", got.Stream, got.Events, got.Partitions, bytesText(int64(got.Bytes)))
			return err
		})
	}
	cmd.Flags().String("retention", "", "in place of the file's: keep events so long, such as 7d; none: without limit")
	cmd.Flags().String("retention-bytes", "", "in place of the file's: keep so many bytes, such as 10GiB; none: without limit")
	s.add(cmd)
	o.add(cmd)
	return cmd
}

// importOptions reads the settings that an import may change, as the stream commands do.
func importOptions(cmd *cobra.Command) (o client.ImportOptions, err error) {
	got, err := settings(cmd.Flags())
	if err != nil {
		return o, err
	}
	number := func(v any) int64 {
		switch v := v.(type) {
		case int:
			return int64(v)
		case int64:
			return v
		}
		return 0
	}
	return client.ImportOptions{RetentionMS: number(got["retention_ms"]), RetentionBytes: number(got["retention_bytes"])}, nil
}

// meter shows on a terminal how many bytes went by.
type meter struct {
	p    *process
	verb string

	mu    sync.Mutex // the HTTP client sends from a goroutine of its own
	n     int64
	shown time.Time
}

func (p *process) meter(verb string) *meter { return &meter{p: p, verb: verb} }

const meterEvery = 250 * time.Millisecond

func (m *meter) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n += int64(len(b))
	if now := time.Now(); m.p.terminal && now.Sub(m.shown) >= meterEvery {
		m.shown = now
		fmt.Fprintf(m.p.err, "\r%s %s   ", bytesText(m.n), m.verb)
	}
	return len(b), nil
}

// end leaves the terminal's line.
func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.shown.IsZero() {
		fmt.Fprint(m.p.err, "\r\033[K")
	}
}

// watch counts what is read. What can be read from the beginning again still can, and is counted from there.
func (m *meter) watch(r io.Reader) io.Reader {
	w := metered{r, m}
	if s, ok := r.(io.Seeker); ok {
		return meteredFile{w, s}
	}
	return w
}

type metered struct {
	r io.Reader
	m *meter
}

func (w metered) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	_, _ = w.m.Write(b[:n])
	return n, err
}

type meteredFile struct {
	metered
	s io.Seeker
}

func (w meteredFile) Seek(offset int64, whence int) (int64, error) {
	w.m.mu.Lock()
	w.m.n = 0
	w.m.mu.Unlock()
	return w.s.Seek(offset, whence)
}

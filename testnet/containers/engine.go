package containers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// ErrNoEngine is wrapped where there is nothing to run containers with: no command, no engine that answers, no compose.
var ErrNoEngine = errors.New("no container engine")

// answerWithin is how long an engine may take to say that it is there.
const answerWithin = 20 * time.Second

// Engine is a container engine that answers, and the compose to use with it.
type Engine struct {
	// Version of the engine.
	Version string
	// Compose is the command that reads compose files: docker compose, or docker-compose.
	Compose []string
}

// Find looks for an engine. Its error wraps ErrNoEngine and says what is missing.
func Find(ctx context.Context) (*Engine, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerWithin, fmt.Errorf("no answer within %v", answerWithin))
	defer cancel()
	if _, err := exec.LookPath("docker"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoEngine, err)
	}
	version, err := run(ctx, nil, "docker", "version", "--format", "{{.Server.Version}}")
	if err != nil {
		return nil, fmt.Errorf("%w answers: %w", ErrNoEngine, err)
	}
	e := &Engine{Version: version}
	for _, compose := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if _, err := run(ctx, nil, append(compose, "version")...); err == nil {
			e.Compose = compose
			return e, nil
		}
	}
	return nil, fmt.Errorf("%w: neither docker compose nor docker-compose is there", ErrNoEngine)
}

// Build makes an image of the binary dir/bin/skein, after dockerfile.
func (e *Engine) Build(ctx context.Context, dockerfile, dir, image string) error {
	_, err := run(ctx, nil, "docker", "build", "-q", "-f", dockerfile, "-t", image, dir)
	return err
}

// RemoveImage removes an image that Build made.
func (e *Engine) RemoveImage(ctx context.Context, image string) error {
	_, err := run(ctx, nil, "docker", "image", "rm", "-f", image)
	return err
}

// kinds of things that a project has, in the order in which they can be removed.
var kinds = []struct{ kind, all, name, force string }{
	{"container", "-a", "{{.ID}}", "-fv"}, {"network", "", "{{.ID}}", ""}, {"volume", "", "{{.Name}}", "-f"},
}

const projectLabel = "com.docker.compose.project"

// remove removes everything that has the project's label.
func (e *Engine) remove(ctx context.Context, project string) error {
	var errs []error
	for _, k := range kinds {
		list := []string{"docker", k.kind, "ls", "--filter", "label=" + projectLabel + "=" + project, "--format", k.name}
		if k.all != "" {
			list = append(list, k.all)
		}
		out, err := run(ctx, nil, list...)
		if err != nil || out == "" {
			errs = append(errs, err)
			continue
		}
		rm := []string{"docker", k.kind, "rm"}
		if k.force != "" {
			rm = append(rm, k.force)
		}
		_, err = run(ctx, nil, append(rm, strings.Split(out, "\n")...)...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Projects lists the compose projects of which the engine has anything.
func (e *Engine) Projects(ctx context.Context) ([]string, error) {
	var all []string
	for _, k := range kinds {
		list := []string{"docker", k.kind, "ls", "--filter", "label=" + projectLabel, "--format", `{{.Label "` + projectLabel + `"}}`}
		if k.all != "" {
			list = append(list, k.all)
		}
		out, err := run(ctx, nil, list...)
		if err != nil {
			return nil, err
		}
		all = append(all, strings.Fields(out)...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// run runs one command and returns what it printed, without the last line feed. A failure tells the last lines of its errors.
func run(ctx context.Context, env []string, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	if env != nil {
		cmd.Env = append(os.Environ(), env...)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, lastLines(errs.String(), 5))
	}
	return strings.TrimRight(out.String(), "\n"), nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// runBoth is run for what a command prints to either of its outputs.
func runBoth(ctx context.Context, command ...string) (string, error) {
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

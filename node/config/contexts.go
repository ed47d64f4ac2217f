package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Context is a mesh that the command line may talk to.
type Context struct {
	Servers []string `yaml:"servers"`
	Token   string   `yaml:"token,omitempty"`
}

// Contexts is the file of meshes by name, for people with several.
type Contexts struct {
	Current  string             `yaml:"current,omitempty"`
	Contexts map[string]Context `yaml:"contexts"`
}

// ContextsPath is where the contexts of a user lie: skein/contexts.yaml below the user's configuration directory.
func ContextsPath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "skein", "contexts.yaml"), nil
}

// LoadContexts reads the file; one that does not exist is empty.
func LoadContexts(path string) (Contexts, error) {
	var c Contexts
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if len(data) > maxFile {
		return c, &Error{Origin: path, Msg: "is larger than 1 MiB: that is no contexts file"}
	}
	if err := yaml.UnmarshalWithOptions(data, &c, yaml.DisallowUnknownField()); err != nil {
		var y yaml.Error
		if errors.As(err, &y) {
			return c, &Error{Origin: at(path, y.GetToken()), Msg: y.GetMessage()}
		}
		return c, &Error{Origin: path, Msg: err.Error()}
	}
	return c, nil
}

// Pick returns the context of a name, or the current one where name is empty; ok is false where there is none to pick.
func (c Contexts) Pick(name string) (ctx Context, ok bool, err error) {
	if name = cmp.Or(name, c.Current); name == "" {
		return Context{}, false, nil
	}
	ctx, ok = c.Contexts[name]
	if !ok {
		known := slices.Sorted(maps.Keys(c.Contexts))
		msg := fmt.Sprintf("no context %q", name)
		if near := Nearest(name, known); near != "" {
			msg += fmt.Sprintf(", did you mean %s?", near)
		} else if len(known) > 0 {
			msg += "; there are " + strings.Join(known, ", ")
		}
		return ctx, false, errors.New(msg)
	}
	return ctx, true, nil
}

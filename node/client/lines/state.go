package lines

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// State is what a run leaves behind until it is complete.
type State struct {
	Run    string           `json:"run"`
	Stream string           `json:"stream"`
	Done   map[string]int64 `json:"done"` // watermark by file
}

// ErrNoState is returned for a run of which nothing is known here.
var ErrNoState = errors.New("nothing is known of this run")

// StateDir is where runs are remembered: skein/runs below XDG_STATE_HOME, or below ~/.local/state.
func StateDir(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "skein", "runs"), nil
	}
	home := getenv("HOME")
	if home == "" {
		return "", errors.New("neither XDG_STATE_HOME nor HOME is set")
	}
	return filepath.Join(home, ".local", "state", "skein", "runs"), nil
}

func statePath(dir, run string) (string, error) {
	if run == "" || strings.ContainsAny(run, "/\\\x00") || run[0] == '.' || len(run) > 100 {
		return "", fmt.Errorf("%q is no run id", run)
	}
	return filepath.Join(dir, run+".json"), nil
}

// LoadState returns what is known of a run, or ErrNoState.
func LoadState(dir, run string) (State, error) {
	var s State
	path, err := statePath(dir, run)
	if err != nil {
		return s, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, ErrNoState
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil || s.Run != run {
		return s, fmt.Errorf("%s: no state of run %s", path, run)
	}
	return s, nil
}

// Save writes the state, whole or not at all.
func (s State) Save(dir string) error {
	path, err := statePath(dir, s.Run)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return WriteFile(path, append(data, '\n'))
}

// RemoveState forgets a run. One that is not there is fine.
func RemoveState(dir, run string) error {
	path, err := statePath(dir, run)
	if err != nil {
		return err
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// WriteFile replaces a file's content so that a reader, or a crash, sees the old or the new one, never a mixture.
func WriteFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	tmp := f.Name()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
	}
	return err
}

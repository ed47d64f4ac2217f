package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// partitionDirs lists the directories of partitions on disk.
func partitionDirs(dataDir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dataDir, "partitions"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, err
}

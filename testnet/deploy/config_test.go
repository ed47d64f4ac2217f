package deploy

import (
	"path/filepath"
	"testing"

	"github.com/skeinmesh/skein/node/config"
)

// TestConfigurationsAreAccepted reads each configuration as a node on its host or in its pod would.
func TestConfigurationsAreAccepted(t *testing.T) {
	for file, environ := range map[string][]string{
		"systemd/skein.yaml":    {"SKEIN_DATA_DIR=/var/lib/skein"},
		"kubernetes/skein.yaml": {"SKEIN_NAME=skein-0", "SKEIN_ADVERTISE=10.1.2.3", "SKEIN_ZONE=", "SKEIN_DATA_DIR=/data/skein"},
	} {
		cfg, err := config.Load(config.Sources{File: filepath.FromSlash(file), Environ: append(environ, "SKEIN_SECRET="+config.NewSecret().Text())})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if len(cfg.Warnings) > 0 {
			t.Errorf("%s is read with warnings: %q", file, cfg.Warnings)
		}
		if err := cfg.CheckRole(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if len(cfg.InitialMembers) < 3 {
			t.Errorf("%s: founding members %q", file, cfg.InitialMembers)
		}
	}
}

package log_test

import (
	"testing"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/log/logtest"
)

func TestFileJournalConforms(t *testing.T) {
	for name, cfg := range map[string]log.JournalConfig{
		"small files, no cache": {FileBytes: 16 << 10, RetainBytes: 100 << 10, CacheBytes: 1},
		"large file, cache":     {FileBytes: 4 << 20, RetainBytes: 8 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			logtest.RunJournal(t, func(t testing.TB, dir string) log.Journal {
				cfg.Dir = dir
				j, err := log.OpenJournal(cfg)
				if err != nil {
					t.Fatal(err)
				}
				return j
			})
		})
	}
}

func TestPebbleStoreConforms(t *testing.T) {
	logtest.RunStore(t, func(t testing.TB, dir string) log.Store {
		s, err := log.OpenStore(log.StoreConfig{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

package load

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, body := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGroupLimitsBeatTheHost(t *testing.T) {
	root := t.TempDir()
	files := map[string]string{
		"sys/fs/cgroup/cpu.max":        "50000 100000\n",
		"sys/fs/cgroup/cpu.stat":       "usage_usec 1000000\nuser_usec 1\n",
		"sys/fs/cgroup/memory.current": "25\n",
		"sys/fs/cgroup/memory.max":     "100\n",
		"proc/stat":                    "cpu  1 2 3 4 5 6 7 8\n",
		"proc/meminfo":                 "MemTotal: 100 kB\nMemAvailable: 10 kB\n",
	}
	write(t, root, files)
	s := NewSampler(root)
	now := time.Unix(1000, 0)
	if got := s.Sample(now); got.CPUPercent != 0 || got.MemoryPercent != 25 {
		t.Fatalf("first sample: %+v", got)
	}
	files["sys/fs/cgroup/cpu.stat"] = "usage_usec 1250000\n"
	write(t, root, files)
	if got := s.Sample(now.Add(time.Second)); math.Abs(got.CPUPercent-50) > 0.01 {
		t.Fatalf("a quarter second of half a core is 50 %%, got %v", got.CPUPercent)
	}
}

func TestHostIsMeasuredWithoutLimits(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"sys/fs/cgroup/cpu.max": "max 100000\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "1\n",
		"proc/stat": "cpu  100 0 0 1000 0 0 0 0 0 0\n", "proc/meminfo": "MemTotal: 200 kB\nMemAvailable: 50 kB\n",
	})
	s := NewSampler(root)
	now := time.Unix(1000, 0)
	s.Sample(now)
	write(t, root, map[string]string{"proc/stat": "cpu  200 0 0 1900 0 0 0 0 9999 0\n"})
	got := s.Sample(now.Add(time.Second))
	if want := 100 / float64(runtime.NumCPU()); math.Abs(got.CPUPercent-want) > 0.01 || got.MemoryPercent != 75 {
		t.Fatalf("got %+v, want cpu %v memory 75", got, want)
	}
}

func TestMissingFilesGiveNoFigures(t *testing.T) {
	s := NewSampler(t.TempDir())
	s.Sample(time.Unix(1, 0))
	if got := s.Sample(time.Unix(2, 0)); got != (Sample{}) {
		t.Fatalf("got %+v", got)
	}
}

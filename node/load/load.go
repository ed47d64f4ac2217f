package load

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Sample is one measurement, in percent of what the control group, or else the host, allows.
type Sample struct {
	CPUPercent    float64
	MemoryPercent float64
}

// Sampler measures CPU between calls of Sample. One goroutine uses it.
type Sampler struct {
	root string // "/" outside tests
	last cpuUse
	at   time.Time
}

// cpuUse is CPU time used since boot (or since the group was made), and what one second could have used.
type cpuUse struct {
	used  time.Duration
	cores float64
}

// NewSampler reads below root, which is "/" outside tests.
func NewSampler(root string) *Sampler { return &Sampler{root: root} }

// Sample measures now. The first call has no CPU figure, because it takes two readings.
func (s *Sampler) Sample(now time.Time) Sample {
	use, ok := s.cpu()
	out := Sample{MemoryPercent: s.memory()}
	if ok && !s.at.IsZero() && now.After(s.at) && use.used >= s.last.used {
		out.CPUPercent = 100 * (use.used - s.last.used).Seconds() / (now.Sub(s.at).Seconds() * use.cores)
	}
	s.last, s.at = use, now
	return out
}

// cpu prefers the control group where it has a limit: then the host's idle cores are not ours to use.
func (s *Sampler) cpu() (cpuUse, bool) {
	if cores, ok := s.cpuLimit(); ok {
		for line := range strings.Lines(s.read("sys/fs/cgroup/cpu.stat")) {
			if v, ok := strings.CutPrefix(line, "usage_usec "); ok {
				n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
				return cpuUse{time.Duration(n) * time.Microsecond, cores}, err == nil
			}
		}
		if n, ok := s.number("sys/fs/cgroup/cpuacct/cpuacct.usage"); ok {
			return cpuUse{time.Duration(n), cores}, true
		}
	}
	return s.hostCPU()
}

// cpuLimit is the group's bound in cores: cgroup v2, then v1.
func (s *Sampler) cpuLimit() (float64, bool) {
	if f := strings.Fields(s.read("sys/fs/cgroup/cpu.max")); len(f) == 2 && f[0] != "max" {
		quota, err1 := strconv.ParseFloat(f[0], 64)
		period, err2 := strconv.ParseFloat(f[1], 64)
		if err1 == nil && err2 == nil && quota > 0 && period > 0 {
			return quota / period, true
		}
	}
	quota, ok1 := s.number("sys/fs/cgroup/cpu/cpu.cfs_quota_us")
	period, ok2 := s.number("sys/fs/cgroup/cpu/cpu.cfs_period_us")
	if ok1 && ok2 && quota > 0 && period > 0 {
		return float64(quota) / float64(period), true
	}
	return 0, false
}

// hostCPU reads the first line of /proc/stat (proc(5)): all columns but idle and iowait are use. The unit is 1/100 s.
func (s *Sampler) hostCPU() (cpuUse, bool) {
	line, _, _ := strings.Cut(s.read("proc/stat"), "\n")
	f := strings.Fields(line)
	if len(f) < 5 || f[0] != "cpu" {
		return cpuUse{}, false
	}
	var ticks int64
	for i, v := range f[1:] {
		if i == 3 || i == 4 || i > 7 { // idle, iowait; guest time is in user time already
			continue
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return cpuUse{}, false
		}
		ticks += n
	}
	return cpuUse{time.Duration(ticks) * 10 * time.Millisecond, float64(runtime.NumCPU())}, true
}

// memory is the group's use of its limit, or the host's of all its memory.
func (s *Sampler) memory() float64 {
	for _, f := range [][2]string{
		{"sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.max"},
		{"sys/fs/cgroup/memory/memory.usage_in_bytes", "sys/fs/cgroup/memory/memory.limit_in_bytes"},
	} {
		used, ok1 := s.number(f[0])
		limit, ok2 := s.number(f[1])
		if ok1 && ok2 && limit > 0 && limit < 1<<60 { // v1 says "no limit" with a huge number
			return 100 * float64(used) / float64(limit)
		}
	}
	var total, available float64
	for line := range strings.Lines(s.read("proc/meminfo")) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			continue
		}
		switch f[0] {
		case "MemTotal:":
			total = n
		case "MemAvailable:":
			available = n
		}
	}
	if total == 0 {
		return 0
	}
	return 100 * (total - available) / total
}

// read returns a file's content, or nothing: figures that the system does not give are left out.
func (s *Sampler) read(name string) string {
	b, err := os.ReadFile(filepath.Join(s.root, name))
	if err != nil {
		return ""
	}
	return string(b)
}

func (s *Sampler) number(name string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(s.read(name)), 10, 64)
	return n, err == nil
}

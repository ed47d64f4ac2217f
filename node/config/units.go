package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseDuration reads "500ms", "5m", "1h30m" and, beyond the standard library, whole or broken days: "7d", "1d12h".
// Negative spans are refused.
func ParseDuration(s string) (time.Duration, error) {
	var days time.Duration
	rest := s
	if head, tail, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseFloat(head, 64)
		if err != nil || math.IsNaN(n) || n < 0 || n > 36500 {
			return 0, errDuration(s)
		}
		days, rest = time.Duration(n*float64(24*time.Hour)), tail
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return 0, errDuration(s)
	}
	if d < 0 || days+d < 0 {
		return 0, fmt.Errorf("%q is negative", s)
	}
	return days + d, nil
}

func errDuration(s string) error {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return fmt.Errorf("%q has no unit: say 500ms, 30s, 5m, 2h or 7d", s)
	}
	return fmt.Errorf("%q is no time span: say 500ms, 30s, 5m, 2h or 7d", s)
}

var sizeUnits = []struct {
	suffix string
	factor float64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}, {"b", 1},
}

// ParseSize reads a number of bytes: "67108864", "64MiB", "1.5 GiB", "64MB" (decimal). Negative sizes are refused.
func ParseSize(s string) (int64, error) {
	num, factor := strings.ToLower(strings.TrimSpace(s)), 1.0
	for _, u := range sizeUnits {
		if head, ok := strings.CutSuffix(num, u.suffix); ok {
			num, factor = strings.TrimSpace(head), u.factor
			break
		}
	}
	if n, err := strconv.ParseInt(num, 10, 64); err == nil && factor == 1 {
		if n < 0 {
			return 0, fmt.Errorf("%q is negative", s)
		}
		return n, nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || math.IsNaN(f) {
		return 0, fmt.Errorf("%q is no size: say bytes, or 64KiB, 64MiB, 2GiB", s)
	}
	if f < 0 {
		return 0, fmt.Errorf("%q is negative", s)
	}
	if f *= factor; f >= math.MaxInt64 {
		return 0, errors.New("is too large")
	}
	return int64(f), nil
}

// FormatSize writes a size the way ParseSize reads it, in the largest binary unit that keeps it exact.
func FormatSize(n int64) string {
	units := []string{"", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	return strconv.FormatInt(n, 10) + units[i]
}

// formatDuration writes a span without zero parts: "5m", "1h30m", not "5m0s".
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

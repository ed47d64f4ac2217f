package config

import "strings"

// unknownKey is the complaint about a key that nobody knows.
func unknownKey(name string) string {
	names := make([]string, len(table))
	for i, k := range table {
		names[i] = k.Name
	}
	if near := Nearest(name, names); near != "" {
		return "unknown key, did you mean " + near + "?"
	}
	return "unknown key; `skein node --config-keys` lists all"
}

// Nearest is the known name that a slip of the pen most likely meant, or "". Separators and case do not count. A name that is
// the last part of exactly one known name counts as that one ("cpu_max_percent").
func Nearest(name string, known []string) string {
	plain := strings.NewReplacer(".", "", "_", "", "-", "")
	fold := func(s string) string { return plain.Replace(strings.ToLower(s)) }
	want := fold(name)
	if want == "" || len(want) > 64 {
		return ""
	}
	best, bestDist, tails := "", 1+max(1, len(want)/4), []string(nil)
	for _, k := range known {
		if d := distance(want, fold(k)); d < bestDist {
			best, bestDist = k, d
		}
		if strings.HasSuffix(k, "."+name) || strings.HasPrefix(k, name+"_") {
			tails = append(tails, k)
		}
	}
	if best == "" && len(tails) == 1 {
		return tails[0]
	}
	return best
}

// distance is the number of letters to insert, drop, change or swap with a neighbour (optimal string alignment).
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}

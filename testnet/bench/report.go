package bench

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// The systems that are compared with.
const (
	natsAlways  = "nats-always"  // sync_interval: always
	natsDefault = "nats-default" // as it comes
	skeinName   = "skein"
)

// Report is what a run measured.
type Report struct {
	Pairs int    `json:"pairs"` // that ran
	Asked int    `json:"asked"` // that were to run
	Cores int    `json:"cores"`
	Go    string `json:"go"`
	Rows  []*Row `json:"rows"`
}

// Row is one metric in all systems.
type Row struct {
	Name    string                `json:"name"`
	Unit    string                `json:"unit"`
	Lower   bool                  `json:"lower_is_better"`
	Against string                `json:"against"` // the system whose ratio counts
	Figures map[string][]*float64 `json:"figures"` // by system, one a pair; null: failed
	Median  map[string]float64    `json:"median"`
	// Ratio is Skein over each other system: the median of the ratios within pairs.
	Ratio  map[string]float64 `json:"ratio,omitempty"`
	Errors []string           `json:"errors,omitempty"`
}

func newReport() *Report { return &Report{Cores: runtime.NumCPU(), Go: runtime.Version()} }

func (r *Report) row(m metric) *Row {
	for _, w := range r.Rows {
		if w.Name == m.name {
			return w
		}
	}
	w := &Row{Name: m.name, Unit: m.unit, Lower: m.lower, Against: natsDefault, Figures: map[string][]*float64{}}
	if m.durable {
		w.Against = natsAlways
	}
	r.Rows = append(r.Rows, w)
	return w
}

func (w *Row) at(system string, pair int) **float64 {
	for len(w.Figures[system]) <= pair {
		w.Figures[system] = append(w.Figures[system], nil)
	}
	return &w.Figures[system][pair]
}

func (r *Report) add(m metric, system string, pair int, v float64) {
	*r.row(m).at(system, pair) = &v
}

func (r *Report) fail(m metric, system string, pair int, err error) {
	w := r.row(m)
	w.at(system, pair)
	w.Errors = append(w.Errors, fmt.Sprintf("pair %d, %s: %v", pair+1, system, err))
}

// Finish computes medians and ratios.
func (r *Report) Finish() {
	for _, w := range r.Rows {
		w.Median, w.Ratio = map[string]float64{}, map[string]float64{}
		for s, figures := range w.Figures {
			var got, ratios []float64
			for pair, v := range figures {
				if v == nil {
					continue
				}
				got = append(got, *v)
				if ours := w.Figures[skeinName]; s != skeinName && pair < len(ours) && ours[pair] != nil && *v > 0 {
					ratios = append(ratios, *ours[pair] / *v)
				}
			}
			if len(got) > 0 {
				w.Median[s] = median(got)
			}
			if len(ratios) > 0 {
				w.Ratio[s] = median(ratios)
			}
		}
	}
}

// span is the lowest and the highest figure of a system, as text.
func (w *Row) span(system string) string {
	var got []float64
	for _, v := range w.Figures[system] {
		if v != nil {
			got = append(got, *v)
		}
	}
	if len(got) == 0 {
		return "–"
	}
	low, high := slices.Min(got), slices.Max(got)
	return fmt.Sprintf("%.*f..%.*f", decimals(low), low, decimals(high), high)
}

// Table writes the report for people: medians, Skein's ratio to each other system, and the span of Skein's figures and of those of the system
// that counts, which is marked. Its last line says so where pairs are missing.
func (r *Report) Table(to io.Writer) error {
	systems := []string{skeinName, natsAlways, natsDefault}
	tw := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "row\tunit\t%s\tskein/always\tskein/default\tbetter is\tskein min..max\t*other min..max\t\n", strings.Join(systems, "\t"))
	for _, w := range r.Rows {
		cells := []string{w.Name, w.Unit}
		for _, s := range systems {
			if v, ok := w.Median[s]; ok {
				cells = append(cells, fmt.Sprintf("%.*f", decimals(v), v))
			} else {
				cells = append(cells, "–")
			}
		}
		for _, s := range systems[1:] {
			v, ok := w.Ratio[s]
			switch {
			case !ok:
				cells = append(cells, "–")
			case s == w.Against:
				cells = append(cells, fmt.Sprintf("*%.2f", v))
			default:
				cells = append(cells, fmt.Sprintf("%.2f", v))
			}
		}
		better := "more"
		if w.Lower {
			better = "less"
		}
		fmt.Fprintln(tw, strings.Join(append(cells, better, w.span(skeinName), w.span(w.Against)), "\t")+"\t")
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(to, "\nmedians of %d pairs on %d cores; ratios are medians of the pairs' ratios, * is the like-for-like one;\n"+
		"min..max is over all pairs, so where less is better max is the worst\n", r.Pairs, r.Cores)
	for _, w := range r.Rows {
		for _, e := range slices.Compact(w.Errors) {
			fmt.Fprintf(to, "failed: %s: %s\n", w.Name, e)
		}
	}
	if r.Pairs < r.Asked {
		fmt.Fprintf(to, "INCOMPLETE: ONLY %d OF %d PAIRS RAN\n", r.Pairs, r.Asked)
	}
	return nil
}

func decimals(v float64) int {
	switch {
	case v < 10:
		return 2
	case v < 100:
		return 1
	}
	return 0
}

package bench

import (
	"math"
	"math/rand/v2"
	"sort"
)

// zipf draws ranks 0..n-1, rank r with probability proportional to (r+1)^-s. Unlike the standard library's it allows every s from 0
// (even) on. It is immutable: any number of goroutines may draw, each with its own source.
type zipf struct{ cumulative []float64 }

func newZipf(n int, s float64) *zipf {
	z := &zipf{cumulative: make([]float64, n)}
	sum := 0.0
	for i := range z.cumulative {
		sum += math.Pow(float64(i+1), -s)
		z.cumulative[i] = sum
	}
	return z
}

func (z *zipf) draw(rng *rand.Rand) int {
	at := rng.Float64() * z.cumulative[len(z.cumulative)-1]
	return min(sort.SearchFloat64s(z.cumulative, at), len(z.cumulative)-1)
}

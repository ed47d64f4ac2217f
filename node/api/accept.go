package api

import (
	"net/http"
	"strconv"
	"strings"
)

// The formats of a subscription, in the order in which they are preferred where the client has no preference: curl, which accepts
// anything, gets lines.
const (
	formatNDJSON = "ndjson"
	formatSSE    = "sse"
	formatJSON   = "json"
)

var formats = []struct{ name, media string }{
	{formatNDJSON, "application/x-ndjson"},
	{formatSSE, "text/event-stream"},
	{formatJSON, contentJSON},
}

// negotiate picks the format by the Accept header (RFC 9110, section 12.5.1): the highest q, then the more specific range.
func negotiate(h http.Header) (string, error) {
	accept := strings.Join(h["Accept"], ",")
	if strings.TrimSpace(accept) == "" {
		return formatNDJSON, nil
	}
	best, bestQ, bestSpec := "", 0.0, -1
	for _, f := range formats {
		q, spec := quality(accept, f.media)
		if q > bestQ || q > 0 && q == bestQ && spec > bestSpec {
			best, bestQ, bestSpec = f.name, q, spec
		}
	}
	if best == "" {
		return "", NewProblem(http.StatusNotAcceptable, codeNotAccepted,
			"Accept must allow text/event-stream, application/x-ndjson or application/json")
	}
	return best, nil
}

// quality is the q of the most specific range of accept that media matches; spec is 2 for the type itself, 1 for type/*, 0 for */*.
func quality(accept, media string) (q float64, spec int) {
	spec = -1
	major, _, _ := strings.Cut(media, "/")
	for part := range strings.SplitSeq(accept, ",") {
		rng, params, _ := strings.Cut(part, ";")
		s := -1
		switch rng = strings.ToLower(strings.TrimSpace(rng)); rng {
		case media:
			s = 2
		case major + "/*":
			s = 1
		case "*/*":
			s = 0
		}
		if s > spec {
			spec, q = s, weight(params)
		}
	}
	return q, spec
}

func weight(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(p), "=")
		if !ok || !strings.EqualFold(name, "q") {
			continue
		}
		q, err := strconv.ParseFloat(value, 64)
		if err != nil || !(q >= 0 && q <= 1) {
			return 0
		}
		return q
	}
	return 1
}

package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Route is one method and path of the API.
type Route struct {
	Method string // GET also answers HEAD, unless Stream
	// Pattern is a path of literal segments and {names}, such as /v1/streams/{stream}; at most four names. A last segment
	// {name...} takes the rest of the path.
	Pattern string
	// Query lists the parameters that the route knows; any other is refused.
	Query  []string
	Access Scope
	// Stream marks answers that go on for as long as the client reads.
	Stream bool
	// Handle answers, or returns why it cannot: then nothing was written yet.
	Handle func(c *Call) error
}

// router matches escaped paths segment by segment, so that %2f stays inside its segment, and never redirects: a path that
// is not exactly a route's is not found.
type router struct {
	byLen map[int][]*node // by number of segments
	rest  []*node         // patterns that end in {name...}
	all   []*Route
}

type node struct {
	segs    []string
	methods map[string]*Route
	allow   string
}

func newRouter(routes []Route) (*router, error) {
	r := &router{byLen: map[int][]*node{}}
	for i := range routes {
		if err := r.add(&routes[i]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *router) add(rt *Route) error {
	if rt.Handle == nil || !strings.HasPrefix(rt.Pattern, "/") || rt.Access == "" {
		return fmt.Errorf("route %s %s: pattern, access or handler is missing", rt.Method, rt.Pattern)
	}
	segs := strings.Split(rt.Pattern[1:], "/")
	list := r.byLen[len(segs)]
	isRest := strings.HasSuffix(rt.Pattern, "...}")
	if isRest {
		list = r.rest
	}
	i := slices.IndexFunc(list, func(n *node) bool { return slices.Equal(n.segs, segs) })
	if i < 0 {
		list = append(list, &node{segs: segs, methods: map[string]*Route{}})
		i = len(list) - 1
	}
	n := list[i]
	if n.methods[rt.Method] != nil {
		return fmt.Errorf("route %s %s: registered twice", rt.Method, rt.Pattern)
	}
	n.methods[rt.Method] = rt
	if rt.Method == http.MethodGet && !rt.Stream {
		n.methods[http.MethodHead] = rt
	}
	var allow []string
	for m := range n.methods {
		allow = append(allow, m)
	}
	slices.Sort(allow)
	n.allow = strings.Join(allow, ", ")
	r.all = append(r.all, rt)
	if isRest {
		r.rest = list
		return nil
	}
	// Literal segments come before names, so that the more specific pattern wins.
	slices.SortStableFunc(list, func(a, b *node) int { return strings.Compare(literals(b.segs), literals(a.segs)) })
	r.byLen[len(segs)] = list
	return nil
}

// literals draws a pattern as a string that sorts literals above names.
func literals(segs []string) string {
	var b strings.Builder
	for _, s := range segs {
		if strings.HasPrefix(s, "{") {
			b.WriteByte('0')
		} else {
			b.WriteByte('1')
		}
	}
	return b.String()
}

// match finds the route of c and fills in its path values.
func (r *router) match(c *Call) error {
	path := c.R.URL.EscapedPath()
	if !strings.HasPrefix(path, "/") {
		return notFound(path)
	}
	var buf [12]string
	segs := split(path[1:], buf[:0])
	for _, n := range r.byLen[len(segs)] {
		if ok, err := n.match(segs, c); err != nil {
			return err
		} else if ok {
			return n.pick(c)
		}
	}
	for _, n := range r.rest {
		k := len(n.segs) - 1
		if len(segs) <= k {
			continue
		}
		whole := append(slices.Clone(segs[:k]), strings.Join(segs[k:], "/"))
		if ok, err := n.match(whole, c); err != nil {
			return err
		} else if ok {
			return n.pick(c)
		}
	}
	return notFound(path)
}

func split(path string, to []string) []string {
	for {
		i := strings.IndexByte(path, '/')
		if i < 0 {
			return append(to, path)
		}
		to = append(to, path[:i])
		path = path[i+1:]
	}
}

func (n *node) match(segs []string, c *Call) (bool, error) {
	for i, s := range n.segs {
		if !strings.HasPrefix(s, "{") && s != segs[i] {
			return false, nil
		}
	}
	k := 0
	for i, s := range n.segs {
		if !strings.HasPrefix(s, "{") {
			continue
		}
		v := segs[i]
		if strings.IndexByte(v, '%') >= 0 {
			var err error
			if v, err = url.PathUnescape(v); err != nil {
				return false, invalid("the path is malformed: " + clip(err.Error()))
			}
		}
		c.path[k] = pathValue{strings.TrimSuffix(s[1:len(s)-1], "..."), v}
		k++
	}
	return true, nil
}

func (n *node) pick(c *Call) error {
	rt := n.methods[c.R.Method]
	if rt == nil {
		p := NewProblem(http.StatusMethodNotAllowed, codeMethod, "this path takes "+n.allow)
		p.Allow = n.allow
		return p
	}
	c.route = rt
	return nil
}

func notFound(path string) *Problem {
	return NewProblem(http.StatusNotFound, codeNotFound, "no such route: "+clip(path)+"; /openapi.json lists them")
}

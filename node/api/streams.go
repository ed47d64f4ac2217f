package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/transport/wire"
)

// maxConfigBytes bounds the JSON of a stream's config, of a merge patch, and of what an operation takes.
const maxConfigBytes = 256 << 10

// configFields are the JSON names of flow.StreamConfig.
var configFields = jsonFields(flow.StreamConfig{})

// checkName holds a stream's name against API rules; %2f, NUL and the like arrive here unescaped and fail.
func checkName(name string) error {
	bad := func(why string) error {
		return NewProblem(http.StatusBadRequest, codeInvalidName, "stream name "+strconv.Quote(clip(name))+": "+why)
	}
	if name == "" || len(name) > 249 {
		return bad(fmt.Sprintf("it has %d characters; 1 to 249 are allowed", len(name)))
	}
	if name == "." || name == ".." {
		return bad("it would be mistaken for a folder")
	}
	for i := range len(name) {
		ch := name[i]
		if !(ch >= 'a' && ch <= 'z' || ch >= 'A' && ch <= 'Z' || ch >= '0' && ch <= '9' || ch == '.' || ch == '_' || ch == '-') {
			return bad("only letters, digits, dot, underscore and hyphen are allowed")
		}
	}
	return nil
}

// checkOwnName also refuses the names that the mesh keeps for itself.
func checkOwnName(name string) error {
	if strings.HasPrefix(name, "_") {
		return NewProblem(http.StatusBadRequest, codeInvalidName,
			"stream name "+strconv.Quote(clip(name))+": a leading underscore is reserved for the mesh")
	}
	return checkName(name)
}

func (s *Server) listStreams(c *Call) error {
	return view(c, func(ctx context.Context) (flow.StreamList, error) {
		list, err := s.dep.Streams.List(ctx)
		if list.Streams == nil {
			list.Streams = []flow.StreamInfo{}
		}
		return list, err
	})
}

func (s *Server) getStream(c *Call) error {
	name := c.Path("stream")
	if err := checkName(name); err != nil {
		return err
	}
	ctx, cancel, err := c.Deadline(readDeadline)
	if err != nil {
		return err
	}
	defer cancel()
	info, err := s.dep.Streams.Get(ctx, name)
	if err != nil {
		return err
	}
	return c.stream(http.StatusOK, info)
}

// stream answers with a definition and its version as ETag.
func (c *Call) stream(status int, info flow.StreamInfo) error {
	tag := etag(info.Version)
	c.w.Header().Set("ETag", tag)
	if c.R.Method == http.MethodGet || c.R.Method == http.MethodHead {
		if names(c.R.Header["If-None-Match"], tag, true) {
			c.w.WriteHeader(http.StatusNotModified)
			return nil
		}
	}
	return c.JSON(status, info)
}

// names reports whether the values of an If-Match or If-None-Match header name tag (RFC 9110, section 13.1): a list of ETags, or * for
// any. weak takes W/"1" for "1". None of our ETags has a comma in it.
func names(values []string, tag string, weak bool) bool {
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		part = strings.TrimSpace(part)
		if weak {
			part = strings.TrimPrefix(part, "W/")
		}
		if part == tag || part == "*" {
			return true
		}
	}
	return false
}

func etag(version uint64) string { return `"` + strconv.FormatUint(version, 10) + `"` }

func (s *Server) putStream(c *Call) error {
	name := c.Path("stream")
	if err := checkOwnName(name); err != nil {
		return err
	}
	mode := flow.CreateOrSame
	switch v := c.R.Header.Get("If-None-Match"); v {
	case "":
	case "*":
		mode = flow.CreateOnly
	default:
		return invalid("If-None-Match takes * alone here")
	}
	if c.R.Header.Get("If-Match") != "" {
		return invalid("If-Match belongs to PATCH; PUT creates, or confirms an equal config")
	}
	b, err := c.configBytes(contentJSON)
	if err != nil {
		return err
	}
	cfg, err := readConfig(b)
	if err != nil {
		return err
	}
	ctx, cancel, err := c.Deadline(s.live().PublishDeadline)
	if err != nil {
		return err
	}
	defer cancel()
	info, created, err := s.dep.Streams.Create(ctx, name, cfg, mode)
	if mode == flow.CreateOnly && wire.KindOf(err) == wire.KindConflict {
		err = NewProblem(http.StatusPreconditionFailed, "exists", "stream "+name+" exists")
	}
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		c.w.Header().Set("Location", "/v1/streams/"+name)
	}
	return c.stream(status, info)
}

// patchStream applies an RFC 7396 merge patch to the config. Without If-Match it is still a compare-and-set on the version that
// it read, and tries again when another change came between.
func (s *Server) patchStream(c *Call) error {
	name := c.Path("stream")
	if err := checkOwnName(name); err != nil {
		return err
	}
	want := c.R.Header["If-Match"]
	patch, err := c.configBytes("application/merge-patch+json")
	if err != nil {
		return err
	}
	ctx, cancel, err := c.Deadline(s.live().PublishDeadline)
	if err != nil {
		return err
	}
	defer cancel()
	for try := 0; ; try++ {
		info, err := s.dep.Streams.Get(ctx, name)
		if err == nil && want != nil && !names(want, etag(info.Version), false) {
			err = versionMismatch(info.Version)
		}
		cfg := info.Config
		if err == nil {
			err = mergeConfig(&cfg, patch)
		}
		if err == nil {
			info, err = s.dep.Streams.Update(ctx, name, info.Version, cfg)
		}
		if err == nil {
			return c.stream(http.StatusOK, info)
		}
		if raced := wire.CodeOf(err) == "version-mismatch"; !raced || try == 3 {
			return err
		}
	}
}

func versionMismatch(now uint64) error {
	return NewProblem(http.StatusPreconditionFailed, codePrecondition, "the stream's ETag is "+etag(now)+" now; read it again")
}

// mergeConfig patches cfg: null takes a field, or one rule of affinity or pin, back to its default.
func mergeConfig(cfg *flow.StreamConfig, patch []byte) error {
	cur, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	var base, change map[string]any
	if err := decodeNumbers(cur, &base); err != nil {
		return err
	}
	if err := decodeNumbers(patch, &change); err != nil {
		return invalid("the patch is not a JSON object: " + clip(err.Error()))
	}
	merged, err := json.Marshal(mergePatch(base, change))
	if err != nil {
		return err
	}
	*cfg, err = readConfig(merged)
	return err
}

func mergePatch(base, change map[string]any) map[string]any {
	if base == nil {
		base = map[string]any{}
	}
	for k, v := range change {
		switch v := v.(type) {
		case nil:
			delete(base, k)
		case map[string]any:
			inner, _ := base[k].(map[string]any)
			base[k] = mergePatch(inner, v)
		default:
			base[k] = v
		}
	}
	return base
}

func decodeNumbers(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(v)
}

func (s *Server) deleteStream(c *Call) error {
	name := c.Path("stream")
	if err := checkOwnName(name); err != nil {
		return err
	}
	if v, _ := c.Query("confirm"); v != name {
		return NewProblem(http.StatusBadRequest, codeConfirm,
			"deleting stream "+name+" removes all its events for good; confirm with ?confirm="+name)
	}
	if c.R.Header["If-Match"] != nil { // it cannot be held to it, and must not act as if it could
		return invalid("If-Match belongs to PATCH; DELETE takes none")
	}
	ctx, cancel, err := c.Deadline(s.live().PublishDeadline)
	if err != nil {
		return err
	}
	defer cancel()
	if err := s.dep.Streams.Delete(ctx, name); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// configBytes reads a stream's config, or a patch of one.
func (c *Call) configBytes(mediaType string) ([]byte, error) {
	return c.objectBytes(mediaType, configFields)
}

// objectBytes reads a strict JSON object: no unknown or doubled names, bounded depth. It returns nil for an empty body.
func (c *Call) objectBytes(mediaType string, fields []string) ([]byte, error) {
	if ct := c.R.Header.Get("Content-Type"); ct != "" {
		mt, _, err := mime.ParseMediaType(ct)
		if err != nil || mt != mediaType && mt != contentJSON {
			return nil, NewProblem(http.StatusUnsupportedMediaType, codeMediaType, "send "+mediaType+", not "+strconv.Quote(clip(ct)))
		}
	}
	if ce := c.R.Header.Get("Content-Encoding"); ce != "" && ce != "identity" {
		return nil, NewProblem(http.StatusUnsupportedMediaType, codeMediaType, "this route takes no Content-Encoding")
	}
	body := c.pacedBody()
	b, err := io.ReadAll(io.LimitReader(body, maxConfigBytes+1))
	body.done()
	if err != nil {
		return nil, bodyError(err)
	}
	if len(b) > maxConfigBytes {
		return nil, tooLarge(fmt.Sprintf("the JSON has at most %d bytes", maxConfigBytes))
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, nil
	}
	if err := strictObject(b, fields); err != nil {
		return nil, err
	}
	return b, nil
}

// readConfig reads a stream's config; what b leaves out has its default, and so has everything where b is empty. A zero that is
// given is a value like any other.
func readConfig(b []byte) (flow.StreamConfig, error) {
	cfg := flow.StreamConfig{}.WithDefaults()
	if len(b) == 0 {
		return cfg, nil
	}
	err := json.Unmarshal(b, &cfg)
	if err == nil {
		return cfg, cfg.Validate()
	}
	if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return cfg, invalid(fmt.Sprintf("field %s: a JSON %s does not fit; expected %s", te.Field, te.Value, te.Type))
	}
	return cfg, invalid("malformed JSON: " + clip(err.Error()))
}

package api

import (
	"context"
	"net/http"
	"time"
)

// readDeadline is how long routes that only look wait where the client names no timeout_ms.
const readDeadline = 5 * time.Second

// view answers with what get returns within the request's deadline.
func view[T any](c *Call, get func(context.Context) (T, error)) error {
	ctx, cancel, err := c.Deadline(readDeadline)
	if err != nil {
		return err
	}
	defer cancel()
	v, err := get(ctx)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, v)
}

func (s *Server) meshSummary(c *Call) error { return view(c, s.dep.Mesh.Summary) }
func (s *Server) meshMembers(c *Call) error { return view(c, s.dep.Mesh.Members) }
func (s *Server) meshRing(c *Call) error    { return view(c, s.dep.Mesh.Ring) }

func (s *Server) meshPartitions(c *Call) error {
	stream, given := c.Query("stream")
	if given {
		if err := checkName(stream); err != nil {
			return err
		}
	}
	return view(c, func(ctx context.Context) (MeshPartitions, error) { return s.dep.Mesh.Partitions(ctx, stream) })
}

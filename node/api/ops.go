package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
)

// Operator carries out what operators ask of the mesh. Safe for concurrent use. Its errors are wire errors: the API tells them as they are.
type Operator interface {
	// Ask begins an operation, or finds the equal one that is under way; of a dry run it tells what would happen, and nothing is kept.
	Ask(ctx context.Context, r ops.Request) (ops.Operation, error)
	// Operation looks one up, on the node that keeps it.
	Operation(ctx context.Context, id string) (ops.Operation, error)
	// Operations lists a page of those of all nodes, as far as they answer.
	Operations(ctx context.Context, page ops.Page) (ops.List, error)
}

// nodeOp serves an operation about the node that the path names.
func (s *Server) nodeOp(kind ops.Kind) func(*Call) error {
	return func(c *Call) error {
		if err := c.noBody(); err != nil {
			return err
		}
		return s.operate(c, ops.Request{Kind: kind, Node: c.Path("node")})
	}
}

// transferFields and moveFields are the JSON names that the operations on partitions take.
var (
	transferFields = []string{"to"}
	moveFields     = []string{"from", "to"}
)

// partitionOp serves an operation about the partition that the path names.
func (s *Server) partitionOp(kind ops.Kind, fields []string) func(*Call) error {
	return func(c *Call) error {
		stream := c.Path("stream")
		if err := checkName(stream); err != nil {
			return err
		}
		p, err := strconv.ParseUint(c.Path("partition"), 10, 32)
		if err != nil {
			return invalid(fmt.Sprintf("partition %q is not a number", clip(c.Path("partition"))))
		}
		r := ops.Request{Kind: kind, Stream: stream, Partition: ring.PartitionID(p)}
		if err := c.readOp(&r, fields); err != nil {
			return err
		}
		return s.operate(c, r)
	}
}

// readOp reads the names of nodes that an operation takes; each of them must be there.
func (c *Call) readOp(r *ops.Request, fields []string) error {
	b, err := c.objectBytes(contentJSON, fields)
	if err != nil {
		return err
	}
	var body struct{ From, To string }
	if len(b) > 0 {
		if err := json.Unmarshal(b, &body); err != nil {
			return invalid("malformed JSON: " + clip(err.Error()))
		}
	}
	r.From, r.To = body.From, body.To
	for _, f := range fields {
		if f == "from" && r.From == "" || f == "to" && r.To == "" {
			return invalid(fmt.Sprintf("field %q is missing: it names a node", f))
		}
	}
	return nil
}

// noBody refuses a body where none is taken: it would be a mistake that goes unnoticed.
func (c *Call) noBody() error {
	body := c.pacedBody()
	defer body.done()
	b, err := io.ReadAll(io.LimitReader(body, 1<<10))
	if err != nil {
		return bodyError(err)
	}
	if b = bytes.TrimSpace(b); len(b) > 0 && string(b) != "{}" {
		return invalid("this route takes no body")
	}
	return nil
}

// operate asks, and answers 202 with where to look, or 200 with the plan of a dry run.
func (s *Server) operate(c *Call, r ops.Request) error {
	var err error
	if r.DryRun, err = c.Flag("dry_run"); err != nil {
		return err
	}
	ctx, cancel, err := c.Deadline(s.live().PublishDeadline)
	if err != nil {
		return err
	}
	defer cancel()
	op, err := s.dep.Ops.Ask(ctx, r)
	if err != nil {
		return err
	}
	if r.DryRun {
		return c.JSON(http.StatusOK, op)
	}
	if op.ID == "" {
		return errors.New("an operation without an id")
	}
	c.w.Header().Set("Location", "/v1/operations/"+op.ID)
	return c.JSON(http.StatusAccepted, op)
}

func (s *Server) getOperation(c *Call) error {
	return view(c, func(ctx context.Context) (ops.Operation, error) { return s.dep.Ops.Operation(ctx, c.Path("id")) })
}

// A page of operations has operationsPage of them where the client names no limit, and maxOperationsPage at most.
const (
	operationsPage    = 100
	maxOperationsPage = 1000
)

func (s *Server) listOperations(c *Call) error {
	limit, err := c.Int("limit", operationsPage, 1, maxOperationsPage)
	if err != nil {
		return err
	}
	page := ops.Page{Limit: int(limit)}
	if cursor, given := c.Query("cursor"); given {
		var ok bool
		if page.After, ok = ops.ParsePlace(cursor); !ok {
			return invalid(fmt.Sprintf("query parameter cursor: %q is none; take next_cursor of the page before", clip(cursor)))
		}
	}
	return view(c, func(ctx context.Context) (ops.List, error) { return s.dep.Ops.Operations(ctx, page) })
}

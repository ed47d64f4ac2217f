package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Operation is one thing that was asked of the mesh, and how it stands.
type Operation struct {
	ID        string    `json:"id"` // empty of a dry run
	Kind      string    `json:"kind"`
	State     string    `json:"state"` // planned | running | done | failed | cancelled
	Node      string    `json:"node"`
	Stream    string    `json:"stream"`
	Partition *uint32   `json:"partition"`
	From      string    `json:"from"`
	To        string    `json:"to"`
	Keeper    string    `json:"kept_by"`
	Reason    string    `json:"reason"`
	Steps     []string  `json:"steps"`
	Progress  *Progress `json:"progress"`
	Started   time.Time `json:"started"`
	Ended     time.Time `json:"ended"`
	// Raw is the answer as it came.
	Raw json.RawMessage `json:"-"`
}

// Progress is how far a drain is.
type Progress struct {
	ReplicasAtStart int         `json:"replicas_at_start"`
	Replicas        int         `json:"replicas"`
	Owned           int         `json:"owned"`
	Stuck           int         `json:"stuck"`
	SafeToPowerDown bool        `json:"safe_to_power_down"`
	Remaining       []Remaining `json:"remaining"`
}

// Remaining is one copy that a draining node still holds, and why.
type Remaining struct {
	Stream    string `json:"stream"`
	Partition uint32 `json:"partition"`
	Role      string `json:"role"`
	Stuck     bool   `json:"stuck"`
	Reason    string `json:"reason"`
}

// Over reports whether nothing more will happen.
func (o Operation) Over() bool { return o.State != "running" }

// What is a word for what the operation is about.
func (o Operation) What() string {
	if o.Partition == nil {
		return o.Node
	}
	return fmt.Sprintf("%s/%d", o.Stream, *o.Partition)
}

func nodePath(name string) string { return "/v1/nodes/" + url.PathEscape(name) }

// Drain has a node hand away all that it holds; repeated, it answers with the drain under way. With dryRun nothing is done, here and below.
func (c *Client) Drain(ctx context.Context, node string, dryRun bool) (Operation, error) {
	return c.operate(ctx, http.MethodPost, nodePath(node)+"/drain", nil, dryRun)
}

// CancelDrain takes a draining node back into service.
func (c *Client) CancelDrain(ctx context.Context, node string, dryRun bool) (Operation, error) {
	return c.operate(ctx, http.MethodDelete, nodePath(node)+"/drain", nil, dryRun)
}

// Cordon keeps new work off a node.
func (c *Client) Cordon(ctx context.Context, node string, dryRun bool) (Operation, error) {
	return c.operate(ctx, http.MethodPut, nodePath(node)+"/cordon", nil, dryRun)
}

// Uncordon lets a node take its share again.
func (c *Client) Uncordon(ctx context.Context, node string, dryRun bool) (Operation, error) {
	return c.operate(ctx, http.MethodDelete, nodePath(node)+"/cordon", nil, dryRun)
}

// Transfer hands the ownership of a partition to another of its nodes.
func (c *Client) Transfer(ctx context.Context, stream string, partition uint32, to string, dryRun bool) (Operation, error) {
	return c.operate(ctx, http.MethodPost, fmt.Sprintf("%s/partitions/%d/transfer", streamPath(stream), partition), map[string]string{"to": to}, dryRun)
}

// Move has one copy of a partition go from a node to another.
func (c *Client) Move(ctx context.Context, stream string, partition uint32, from, to string, dryRun bool) (Operation, error) {
	return c.operate(ctx, http.MethodPost, fmt.Sprintf("%s/partitions/%d/move", streamPath(stream), partition),
		map[string]string{"from": from, "to": to}, dryRun)
}

// Operation looks an operation up.
func (c *Client) Operation(ctx context.Context, id string) (Operation, error) {
	return c.operation(ctx, request{method: http.MethodGet, path: "/v1/operations/" + url.PathEscape(id), repeat: true})
}

// operate asks for an operation. All of them may be asked again: what is under way, or done, is found so.
func (c *Client) operate(ctx context.Context, method, path string, body map[string]string, dryRun bool) (Operation, error) {
	r := request{method: method, path: path, repeat: true}
	if body != nil {
		var err error
		if r.body, err = json.Marshal(body); err != nil {
			return Operation{}, fmt.Errorf("client: %w", err)
		}
		r.header = http.Header{"Content-Type": {"application/json"}}
	}
	if dryRun {
		r.query = url.Values{"dry_run": {"true"}}
	}
	return c.operation(ctx, r)
}

func (c *Client) operation(ctx context.Context, r request) (Operation, error) {
	var op Operation
	if _, err := c.do(ctx, r, &op.Raw); err != nil {
		return Operation{}, err
	}
	if err := json.Unmarshal(op.Raw, &op); err != nil {
		return Operation{}, fmt.Errorf("client: %s %s: read the answer: %w", r.method, r.path, err)
	}
	return op, nil
}

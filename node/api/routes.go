package api

import (
	"net/http"

	"github.com/skeinmesh/skein/node/ops"
)

// routes are the server's own.
func (s *Server) routes() []Route {
	const (
		get, post = http.MethodGet, http.MethodPost
		stream    = "/v1/streams/{stream}"
		part      = stream + "/partitions/{partition}"
		node      = "/v1/nodes/{node}"
	)
	act := []string{"dry_run", "timeout_ms"}
	return []Route{
		{post, stream + "/events", []string{"key", "ack", "timeout_ms"}, ScopePublish, false, s.publishOne},
		{post, stream + "/events/batch", []string{"key", "key_field", "envelope", "ack", "summary", "timeout_ms"},
			ScopePublish, false, s.publishBatch},
		{get, stream + "/events", []string{"from", "key", "partition", "limit", "wait_ms", "until", "timeout_ms"},
			ScopeSubscribe, true, s.subscribe},
		{get, stream + "/partitions/{partition}/events/{offset}", []string{"timeout_ms"}, ScopeSubscribe, false, s.eventAt},

		{get, "/v1/streams", []string{"timeout_ms"}, ScopeView, false, s.listStreams},
		{get, stream, []string{"timeout_ms"}, ScopeView, false, s.getStream},
		{http.MethodPut, stream, []string{"timeout_ms"}, ScopeAdmin, false, s.putStream},
		{http.MethodPatch, stream, []string{"timeout_ms"}, ScopeAdmin, false, s.patchStream},
		{http.MethodDelete, stream, []string{"confirm", "timeout_ms"}, ScopeAdmin, false, s.deleteStream},
		{get, stream + "/export", nil, ScopeAdmin, true, s.exportStream},
		{post, stream + "/import", []string{"retention_ms", "retention_bytes"}, ScopeAdmin, false, s.importStream},

		{get, "/v1/mesh", []string{"timeout_ms"}, ScopeView, false, s.meshSummary},
		{get, "/v1/mesh/members", []string{"timeout_ms"}, ScopeView, false, s.meshMembers},
		{get, "/v1/mesh/ring", []string{"timeout_ms"}, ScopeView, false, s.meshRing},
		{get, "/v1/mesh/partitions", []string{"stream", "timeout_ms"}, ScopeView, false, s.meshPartitions},

		{post, node + "/drain", act, ScopeAdmin, false, s.nodeOp(ops.Drain)},
		{http.MethodDelete, node + "/drain", act, ScopeAdmin, false, s.nodeOp(ops.CancelDrain)},
		{http.MethodPut, node + "/cordon", act, ScopeAdmin, false, s.nodeOp(ops.Cordon)},
		{http.MethodDelete, node + "/cordon", act, ScopeAdmin, false, s.nodeOp(ops.Uncordon)},
		{post, part + "/move", act, ScopeAdmin, false, s.partitionOp(ops.Move, moveFields)},
		{post, part + "/transfer", act, ScopeAdmin, false, s.partitionOp(ops.Transfer, transferFields)},
		{get, "/v1/operations", []string{"limit", "cursor", "timeout_ms"}, ScopeView, false, s.listOperations},
		{get, "/v1/operations/{id}", []string{"timeout_ms"}, ScopeView, false, s.getOperation},

		{get, "/livez", nil, ScopeOpen, false, s.livez},
		{get, "/readyz", []string{"verbose"}, ScopeOpen, false, s.readyz},
		{get, "/metrics", nil, ScopeView, false, s.metricsPage},
		{get, "/version", nil, ScopeOpen, false, s.version},
		{get, "/openapi.json", nil, ScopeOpen, false, s.openAPI},
		{get, "/debug/pprof/{profile...}", []string{"seconds", "debug", "gc"}, ScopeAdmin, true, s.pprof},
	}
}

// Package api is the HTTP front door of a node: publish, subscribe, stream definitions, the mesh as this node sees it,
// health, metrics and the OpenAPI description.
//
// It owns the HTTP server, the limits on what a client may send or hold, the text forms of events and errors, and
// nothing else: events go to a flow.Publisher and come from a flow.Subscriber, definitions live behind flow.Streams, and
// what is known of the mesh comes from a Mesh. It keeps no state about streams and never decides about placement.
//
// Order: the events of one request reach the Publisher in the order of the body, one call after the other, so that events of one
// key keep their order; a subscription is read by one goroutine, and never ahead of the client's socket by more than two
// buffers. Bodies are read against a Budget, in pieces: the memory of all requests together is bounded.
//
// More routes (groups, tokens, operations) join through Deps.Routes; whoever checks callers does so through Deps.Auth.
package api

// Package transport carries messages, requests and streams between the nodes of one mesh, over mutually authenticated
// connections.
//
// It owns peers: for every node that gossip names it keeps two outgoing connections (control and bulk), and serves the two
// that each peer dials. On a connection every kind of traffic has a QUIC stream of its own (one for all one-way messages,
// one per request, one per opened stream), so that nothing waits behind anything else. It does not decide who is a member,
// retries nothing, and keeps nothing on disk.
//
// Order: one-way messages of one (peer, class) arrive in the order sent, or not at all. Frames of one stream arrive in
// order. Nothing else is ordered.
//
// Outcomes: KindUnavailable is certainly not delivered; KindOutcomeUnknown may have been.
//
// Sockets are behind Network: package quicnet for real, package memnet for tests and simulation.
package transport

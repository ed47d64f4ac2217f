// Package quicnet is transport.Network over QUIC (RFC 9000) on one UDP socket per node. It is the only importer of quic-go.
//
// It owns the socket, its buffers, the TLS handshake and the translation of QUIC's errors; it knows nothing of frames,
// peers or hellos.
package quicnet

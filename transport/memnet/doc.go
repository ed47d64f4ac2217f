// Package memnet is transport.Network in memory, for tests and simulation: no sockets and no goroutines of its own, only
// locks, channels and timers, so that it runs under testing/synctest.
//
// Nodes are joined by directed links that can be cut, healed and delayed. As with QUIC, bytes on a cut link are not lost
// but wait ("retransmission") until the link heals or the connection's idle timeout ends it; loss therefore shows as delay.
package memnet

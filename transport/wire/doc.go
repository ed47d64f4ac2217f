// Package wire is the pure codec between nodes: frames, messages in msgpack, error kinds, and the small interfaces that a
// transport offers.
//
// It owns the numbers that travel (kinds, classes, methods: append only) and the caps (frame size, depth, counts) that
// every decoder checks before it allocates. It owns no socket, goroutine or clock. Everyone may import it.
package wire

// Package credit bounds what is buffered: a Budget is memory that many share, a Sender and a Receiver are the two ends of one
// flow of bytes in which the receiver says beforehand how much it can hold.
//
// It owns numbers only: no bytes, no goroutines, no clock. Budgets are safe for concurrent use; the ends of a flow belong to
// one goroutine each.
//
// Order it guarantees: who waits for a budget is served first come, first served, however much each wants. So a large
// reservation waits for its turn, but nothing overtakes it.
package credit

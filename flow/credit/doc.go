// Package credit bounds what is buffered: a Budget is memory that many share.
//
// It owns numbers only: no bytes, no goroutines, no clock. Budgets are safe for concurrent use.
//
// Order it guarantees: who waits for a budget is served first come, first served, however much each wants. So a large
// reservation waits for its turn, but nothing overtakes it.
package credit

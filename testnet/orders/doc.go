// Package orders makes a shop's order events: a few customers order most, baskets are mostly small and sometimes huge, an order
// passes through its states one after the other. The same seed gives the same events.
//
// It is the load of the demo and of tests that want keys and sizes as people really have them. It is pure: no clock, no
// files, no goroutines.
package orders

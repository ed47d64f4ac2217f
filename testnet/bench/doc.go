// Package bench puts the same load on a mesh of three Skein nodes and on a cluster of three NATS JetStream servers, and compares.
//
// It owns the processes that it starts, their data (in a temporary folder, on one disk for all), the load, and the table. It is a module
// of its own, so that Skein itself does not depend on what it is compared with.
//
// What makes the figures comparable, as far as they are: all systems are up at the same time, on the same host, and take turns row by row;
// what is not measured is idle and has no streams left. A run is repeated in pairs, and a ratio is the median of the pairs' ratios, never
// a quotient of figures taken at different times. The load generator shares the host's cores with what it measures, for all alike. Payloads
// are made beforehand, and nobody decodes them on reading. NATS is spoken to by its own Go client with asynchronous publishing; Skein by
// plain net/http. NATS runs twice, as it comes (flushing files every two minutes) and with sync_interval: always; only the second
// promises what a Skein acknowledgement does.
package bench

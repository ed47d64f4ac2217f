// Package bench loads a running mesh with publishes and measures what comes of it: rate, and latency by percentile.
//
// It is closed-loop: each of its clients has one request in flight, so the figures say what so many patient publishers
// see, not how the mesh behaves under a fixed arrival rate. Latencies are those of requests (batches), with all repeats in
// them.
package bench

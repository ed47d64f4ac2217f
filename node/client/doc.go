// Package client talks to a mesh over HTTP, the way the command line, the demo and the benchmarks do.
//
// It tries several server addresses in turn, turns problem+json into *Error, and repeats what may be repeated: a publish
// goes out again with the same identity after a lost connection, a 504 or a retryable refusal, so that it is stored once;
// a subscription comes back at another server behind the last event it delivered. Every wait honours its context.
//
// A Client is safe for concurrent use. It does not promise order between concurrent publishes; whoever wants one key's
// events in order publishes them one call after the other. It starts no goroutine of its own beside those of net/http.
package client

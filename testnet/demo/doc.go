// Command demo tells what Skein is for, on one machine and in under a minute: three nodes, a stream of eight partitions,
// several publishers over HTTP through all nodes, the owner of the busiest partition killed in the middle and brought back,
// everything read again through every node, and a verdict.
//
// The verdict comes from testnet/check: nothing acknowledged was lost, nothing is stored twice, each key is in order, every
// reader sees the same event at the same place, and every value is what was sent. Exit code 0 when all of it holds.
//
// -input publishes the lines of a file instead of generated orders, with keys found by -key-regex.
package main

// Package chaos tests real meshes of real processes under faults: nodes killed with SIGKILL one by one and all at once, links cut
// and impaired between network namespaces, disks wiped, rolled back, damaged and full, strangers that try to join; each alone, and all kinds
// together in a storm. It holds tests only.
//
// While faults happen, publishers and readers run over HTTP the way that users' programs do, and record what they saw. After
// healing everything is read back through every node, and testnet/check holds the history against the promises.
//
// The tests are short by default, so that they belong to `make test`. The environment makes them long or repeats one:
//
//	SKEIN_CHAOS=long       64 publishers, several rounds, 20 measured failovers, longer cuts (`make chaos`; SEED=N for the next one)
//	SKEIN_CHAOS_MINUTES=N  how long the storm lasts (`make chaos MINUTES=90` runs it alone); two rounds without it
//	SKEIN_CHAOS_SEED=N     what a failed run printed: repeats its choices (not its timing)
//	SKEIN_CHAOS_BINARY=F   the skein to run, instead of building one from the source tree
//	SKEIN_CHAOS_KEEP=DIR   keep data and logs of the nodes there
//
// Tests over network namespaces need root, and say so where they skip.
package chaos

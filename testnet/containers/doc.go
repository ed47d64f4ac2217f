// Package containers runs the testnet: Skein's image on a container engine, five nodes in three zones and a sixth for growing, as
// testnet/compose.yaml says. It owns the meshes that it is told to start, by their project names, and nothing else of the engine.
//
// It speaks to the engine through the docker command line, and to compose through docker compose or docker-compose, whichever there is.
// What happens to nodes (kill, pause, cut off from the network, starve of CPU) is what an operator's commands would do, one command each;
// nothing is done by itself, and nothing is repeated. The demo (testnet/demo) and this package's tests use it: meshes over real addresses.
//
// A Mesh is safe for concurrent use, except that calls about one node must not overlap.
package containers

// Command skein is the whole of Skein in one binary: the node, a local mesh for trying things out, and the command line
// that talks to a mesh.
//
// This package holds flags, signals and exit codes; what the commands do lives in node, node/dev and node/client.
// Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 used wrongly.
package main

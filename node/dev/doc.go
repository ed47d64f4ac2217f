// Package dev runs a mesh of separate processes on loopback: for trying Skein out, for demonstrations, and for tests that
// kill, stop and restart nodes for real.
//
// Each node is a process of its own with its own data directory and log file; a secret is generated, so that traffic
// between the nodes is as protected as it is between hosts. A Mesh never restarts a node by itself. The processes end
// with the program that started them, even if that is killed.
//
// A Mesh is safe for concurrent use, except that calls about one node must not overlap.
package dev

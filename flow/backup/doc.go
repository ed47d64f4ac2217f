// Package backup is the file form of an exported stream: its definition, then the batches of each partition as they are in the log, then
// counts and a checksum over all, so that a file that was cut short or changed is noticed.
//
// It owns the form, and checks all that can be checked without the mesh: caps, checksums, that batches follow each other from a
// section's base to its end, that every record can be read, that every partition is there. It does not own where batches come from or
// go to (package flow), and keeps one frame in memory.
//
// Who may call: one goroutine for each Writer and Reader. Pure: it reads and writes what it is given.
//
// A file, integers little-endian:
//
//	"SKEINEXP" version(4)
//	frames: kind(1) length(4) CRC-32C of kind, length and body(4) body(length)
//
//	1  manifest  msgpack: the definition; once, first
//	2  section   msgpack: a partition's offsets; then its batches; each partition once
//	3  batches   whole batches as in segment files, header and payload
//	4  end       msgpack: counts of the file, and SHA-256 of all bytes before this frame; once, last
//
// Kinds are append-only; a reader refuses those that it does not know, and any other version.
package backup

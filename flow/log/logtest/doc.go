// Package logtest is the journal and the store in memory, on a disk that can crash, and the conformance suites that they and the
// ones on files pass.
//
// A Disk is what survives. A crash keeps what was synced and, as a real one may, any prefix of what was not; never half of a unit or of a
// batch. With Config.Defer a simulation decides when a sync ends, and runs are reproducible; without it each journal has a goroutine.
//
// For tests and simulation only. It knows nothing of files: torn and damaged bytes are the business of package log's own tests.
package logtest

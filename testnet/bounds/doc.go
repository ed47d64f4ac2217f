// Package bounds holds real meshes against what they promise when somebody is slow: a reader that stops reading, a disk that
// takes a tenth of what publishers send, a disk that fails; and against a peer whose messages are bombs. It also sends real files through a
// mesh and back.
//
// Every test starts node processes of its own, built with the test-only faults. By default they run for seconds and judge
// correctness and coarse bounds; with SKEIN_BOUNDS=full (`make bounds`) they run for minutes and judge the figures that the
// documentation states.
package bounds

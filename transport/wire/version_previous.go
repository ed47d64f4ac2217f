//go:build skein_previous

package wire

// Newest is the highest version that this build speaks: that of the release before, for tests of mixed meshes and of upgrades
// (go build -tags skein_previous). It neither serves nor sends what came later, and reads no directory that holds such.
const Newest = Version1

//go:build !skein_previous

package wire

// Newest is the highest version that this build speaks.
const Newest = Version2

//go:build !skeinplanted

package planted

// Is tells whether a bug is planted. Builds with the tag skeinplanted alone have any.
func Is(Bug) bool { return false }

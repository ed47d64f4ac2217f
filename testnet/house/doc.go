// Package house holds the tests that keep the module's shape: package docs, import arrows, one importer per outside library, purity of
// the decision code, sizes of files and functions, no real sleeping in tests, and that README.md and ARCHITECTURE.md name what is there.
//
// It has no code of its own and nobody imports it. Each rule is a table with its reasons; whoever needs an exception adds a line with
// one. The tests read source text only and build nothing.
package house

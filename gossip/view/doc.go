// Package view is one node's picture of a mesh: members, their load, and hints of who owns which group.
//
// It owns the merge of what was heard. Merging is idempotent, commutative and associative, so gossip may repeat, reorder
// and relay as it likes and every node that heard the same ends with the same picture. It holds no socket, goroutine or
// clock: the caller says what it heard and when. A View never changes; Merge gives a new one that shares what is the same.
//
// A view is never authoritative. It says where to ask first, and is sometimes wrong: only a group's own quorum knows its
// owner.
package view

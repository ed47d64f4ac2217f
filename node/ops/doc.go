// Package ops is the pure core of what operators ask of a mesh: the operations with their states and progress, the bounded table that a node
// keeps of them, and the judgement of what keeps a node from being empty and a partition from having its copies. It does nothing itself:
// package node performs, and hands the time in.
//
// Its types are both the JSON of the HTTP API and the messages between nodes. Fields may be added; names and msgpack tags stay.
package ops

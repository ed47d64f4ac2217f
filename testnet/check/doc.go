// Package check holds recorded histories of clients against what a mesh promises.
//
// It owns the recorders and the checkers. It does not own faults, load or the mesh: whoever drives those (simulation, containers, a
// test over HTTP) records what each client saw, lets the mesh heal, reads everything once more from each replica, and calls Check.
// Checkers are pure: the same history gives the same violations in the same order.
//
// What a history must look like for its verdict to mean something:
//
//   - An event is named by (publisher, key, sequence), which travels in its value, so that a reader can tell which one it met.
//   - A publisher numbers the events of one key upwards and sends one only after the one before has its outcome, or both in one
//     batch. It may retry an event under its identity, and may give up on one whose outcome stayed unknown.
//   - A reader is one subscription: what resumes after a lost connection is recorded under a new name, unless it resumed by cursor
//     and claims to continue without a gap.
//   - After healing, one reader per replica reads everything from the earliest offset and is marked by Final.
//
// Operations on stream definitions have a history and a check of their own: Catalog and CheckCatalog. The verdict is searched for in
// goroutines of the library that does it, until a limit in real time; within the limit it is as pure as the rest.
package check

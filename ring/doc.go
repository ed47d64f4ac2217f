// Package ring holds the identifiers of a mesh and the pure placement of replica groups on nodes.
//
// It owns: node, mesh, stream, group, replica and partition ids; the keyed hash of keys; the slot ring that proposes
// where each group should live (home by bounded-load consistent hashing, further replicas by rendezvous over zones); and the tally of
// what members hold, which proposes swaps and places for new groups so that each holds its share.
// It does not own who really holds anything: placement only proposes, a group's own quorum disposes.
// Everything here is a pure function of its arguments, total (no panic for any input) and safe for concurrent use.
package ring

// Package flow is an event's path through a mesh: publish and subscribe sessions between the node that a client speaks to and
// the owners and replicas of partitions, positions and cursors, and the catalog client that knows where a stream's partitions are.
//
// It owns sessions, credit and the cache of stream definitions. It does not own replicated state (flow/partition and
// flow/catalog do), nor HTTP (node/api), nor who is alive (gossip). It is called by node and node/api.
// Order it guarantees: events of one key keep the order of their acknowledgements for every reader.
package flow

// Package sim runs whole meshes under a virtual clock, over a virtual network and on virtual disks, breaks them in ways that a seed
// chooses, heals them, and holds what clients saw against what a mesh promises.
//
// Nodes are real: broker, replica host, partitions, catalog and placement are those of a process. Simulated is what is around them. The
// network delays, loses, repeats and reorders, and is cut one way or both; the disk is the twin of flow/log/logtest and its Medium, which
// lose what was not synced; gossip is a mixture of old pictures of the mesh. There is no HTTP, QUIC or memberlist here, and no real file.
//
// A run has two phases. In the first everything may fail, and nothing promised may break. In the second all is healed: every publish must
// be acknowledged and every group owned within a bound of virtual time, and then each node is read from beginning to end.
//
// That the checkers would find something is shown by bugs: builds with the tag skeinplanted plant those of flow/planted one by one, and each
// must be caught by name (make planted).
//
// One loop owns the network, the disks' latency, the faults and the random choices. It lets the bubble come to rest, puts what was said
// meanwhile into a canonical order, chooses for each what becomes of it, and lets one thing happen at each instant.
//
// A seed repeats the faults: which, when, and on which node. Most seeds repeat every step besides, so that the hashes of their traces
// agree. Not all do: Go's runtime shuffles timers that are due at one instant, cases of a select that are ready at once, and the children
// of a context, and where goroutines of one node race at one instant, two runs may part ways from there on. A failure that does not come
// back at once is worth a few more runs of its seed.
package sim

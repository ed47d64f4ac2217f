// Package load measures what this node's process and host use of CPU and memory, within the limits of their control group.
//
// It owns the reading of /proc and /sys/fs/cgroup and nothing else: what the numbers mean for the mesh is decided in node.
// Nothing here keeps time; the caller gives it. On systems without those files every figure is 0.
package load

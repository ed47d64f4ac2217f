// Package deploy holds what runs Skein in earnest: a systemd unit for hosts (systemd) and manifests for Kubernetes (kubernetes), with the
// configuration of each.
//
// It has no code of its own: its tests hold the files against systemd's own verifier, the configuration's reader, and what a node needs
// to leave in good order. The manifests' schemas are held in a module of its own (kubernetes), for the sake of its libraries.
package deploy

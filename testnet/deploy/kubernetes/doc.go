// Package kubernetes holds the manifests that run Skein on Kubernetes, for kubectl apply -k.
//
// It has no code of its own: its tests build the manifests as kubectl would, decode each object strictly into the types of the Kubernetes
// API, and hold objects against each other. It is a module of its own for the sake of those libraries.
package kubernetes

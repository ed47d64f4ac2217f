// Package config is a node's configuration: one table of keys, from which defaults, environment names, flags, the
// reference text and --print-config are derived, so that they cannot diverge.
//
// A value comes from the strongest source that sets it: flag, environment, file (YAML or JSON), default. Every value
// remembers where it came from, and every complaint says so: "skein.yaml:3: htp.addr: unknown key, did you mean
// http.addr?". Load reports everything that is wrong, not only the first thing.
//
// The package reads files and the environment it is given; it binds nothing, starts nothing and keeps no state. A Config
// is a plain value: copy it freely, do not change a slice in it once it is shared.
package config

package gossip

import (
	"context"
	"log/slog"
	"regexp"
	"strings"

	"github.com/skeinmesh/skein/ring"
)

// libLog takes memberlist's lines. Those that tell an operator something become one clear line (see notices) or a state of
// the view; all others are kept for debugging only, for they are alarming where nothing is wrong: a node that starts
// before its seeds, or a peer that restarts. Patterns that a later version of the library words otherwise only cost that
// line.
type libLog struct {
	g *Gossip
	d *delegate
}

var (
	fromAddr = regexp.MustCompile(`from=(\S+)`)
	suspect  = regexp.MustCompile(`Suspect (\S+) has failed`)
	tcpOnly  = regexp.MustCompile(`Was able to connect to (\S+) over TCP but UDP probes failed`)
)

// Write takes one line. It is called under memberlist's lock at times, so it only enqueues.
func (l *libLog) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	switch {
	case secretMismatch(line):
		if m := fromAddr.FindStringSubmatch(line); m != nil {
			l.g.notices.refuseSecret(hostOf(m[1]))
		}
	case strings.Contains(line, "Refuting a suspect") || strings.Contains(line, "Refuting a dead"):
		l.g.metrics.refutes.Inc()
	case strings.Contains(line, "handler queue full"):
		l.g.metrics.dropped.WithLabelValues("packets").Inc()
	}
	if m := suspect.FindStringSubmatch(line); m != nil {
		if id, err := ring.ParseNodeID(m[1]); err == nil {
			l.d.setSuspect(id, true)
		}
	}
	if m := tcpOnly.FindStringSubmatch(line); m != nil {
		l.g.notices.put(notice{
			level: slog.LevelWarn, key: "tcp only " + m[1],
			msg:   "a member answers on TCP but not on UDP: let UDP through on the gossip port in both directions",
			attrs: []slog.Attr{slog.String("node", m[1])},
		})
	}
	if l.g.log.Enabled(context.Background(), slog.LevelDebug) {
		l.g.notices.put(notice{level: slog.LevelDebug, msg: "gossip library", attrs: []slog.Attr{slog.String("text", line)}})
	}
	return len(p), nil
}

// secretMismatch reports whether the library says that two nodes do not share a secret.
func secretMismatch(s string) bool {
	return strings.Contains(s, "could decrypt the message") || strings.Contains(s, "Decrypt packet failed") ||
		strings.Contains(s, "encryption is not configured") || strings.Contains(s, "remote state is not encrypted")
}

package node

import (
	"sync"
	"time"
)

// sayPause is how long one warning about one thing is not repeated; maxSaid bounds what is remembered for that.
const (
	sayPause = 10 * time.Minute
	maxSaid  = 256
)

// said remembers which warnings were logged lately.
type said struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (s *said) due(key string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.at[key]; ok && now.Sub(at) < sayPause {
		return false
	}
	if s.at == nil || len(s.at) >= maxSaid {
		s.at = map[string]time.Time{}
	}
	s.at[key] = now
	return true
}

// warnOnce logs one line for one key, and again only after a while.
func (n *Node) warnOnce(key, msg string, args ...any) {
	if n.said.due(key, time.Now()) {
		n.log.Warn(msg, args...)
	}
}

package catalog

import (
	"maps"
	"slices"

	"github.com/skeinmesh/skein/transport/wire"
)

// StreamConfig is what a stream's creator may choose; the zero of a field means its default. Of MinPartitions to Pin only Replicas and
// MinCopies are acted upon yet: the rest is kept, and what users read of it is marked so (node/api/openapi.json, cmd/skein).
type StreamConfig struct {
	Partitions     int               `json:"partitions" msgpack:"p"`                 // 1–256, default 8
	MinPartitions  int               `json:"min_partitions" msgpack:"mi"`            // default 1
	MaxPartitions  int               `json:"max_partitions" msgpack:"ma"`            // default 256
	Replicas       int               `json:"replicas" msgpack:"r"`                   // 1, 3 or 5, default 3
	MinCopies      int               `json:"min_copies" msgpack:"mc"`                // 1–replicas, default 1
	Order          string            `json:"order" msgpack:"o"`                      // key | window | none, default key
	OrderWindowMS  int64             `json:"order_window_ms,omitempty" msgpack:"ow"` // with order window
	HotKeys        []string          `json:"hot_keys,omitempty" msgpack:"hk"`        // patterns
	Affinity       map[string]string `json:"affinity,omitempty" msgpack:"af"`        // zone, label, node
	Pin            map[string]string `json:"pin,omitempty" msgpack:"pi"`             // the same, strictly
	RetentionMS    int64             `json:"retention_ms" msgpack:"rm"`              // default 7 days; -1: no limit
	RetentionBytes int64             `json:"retention_bytes" msgpack:"rb"`           // per stream, default 10 GiB; -1: no limit
	DedupeWindowMS int64             `json:"dedupe_window_ms" msgpack:"dw"`          // default 10 min
	MaxEventBytes  int               `json:"max_event_bytes" msgpack:"me"`           // default 1 MiB, at most 2 MiB
}

// The values of StreamConfig.Order.
const (
	OrderKey    = "key"
	OrderWindow = "window"
	OrderNone   = "none"
)

// Bounds of a stream's config.
const (
	MaxPartitions    = 256     // open partitions of one stream
	MaxEventBytes    = 2 << 20 // of one event
	MaxHotKeys       = 64
	MaxHotKeyBytes   = 1 << 10
	MaxRules         = 16 // affinity or pin rules of one stream
	MaxRuleBytes     = 256
	MaxDedupeWindow  = 24 * 60 * 60 * 1000     // ms
	maxOrderWindowMS = 24 * 60 * 60 * 1000     // ms
	defaultRetention = 7 * 24 * 60 * 60 * 1000 // ms
)

// WithDefaults returns the config with every zero field replaced by its default.
func (c StreamConfig) WithDefaults() StreamConfig {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def64 := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Partitions, 8)
	def(&c.MinPartitions, 1)
	def(&c.MaxPartitions, MaxPartitions)
	def(&c.Replicas, 3)
	def(&c.MinCopies, 1)
	if c.Order == "" {
		c.Order = OrderKey
	}
	def64(&c.RetentionMS, defaultRetention)
	def64(&c.RetentionBytes, 10<<30)
	def64(&c.DedupeWindowMS, 10*60*1000)
	def(&c.MaxEventBytes, 1<<20)
	return c
}

// Validate checks a config after WithDefaults; it changes nothing. The error is KindInvalid and names the field by its API word.
// It is for whoever proposes an entry: Apply checks only what its own state relies on, so that a later change of these rules cannot
// make replicas of different versions disagree.
func (c StreamConfig) Validate() error {
	if err := c.validateCounts(); err != nil {
		return err
	}
	if err := c.validateOrder(); err != nil {
		return err
	}
	limits := []struct {
		field string
		value int64
	}{{"retention_ms", c.RetentionMS}, {"retention_bytes", c.RetentionBytes}}
	for _, l := range limits {
		if l.value < 1 && l.value != -1 {
			return invalid("%s is %d; it must be above 0, or -1 for no limit", l.field, l.value)
		}
	}
	if c.DedupeWindowMS < 1 || c.DedupeWindowMS > MaxDedupeWindow {
		return invalid("dedupe_window_ms is %d; it must be 1–%d", c.DedupeWindowMS, MaxDedupeWindow)
	}
	if c.MaxEventBytes < 1 || c.MaxEventBytes > MaxEventBytes {
		return invalid("max_event_bytes is %d; it must be 1–%d", c.MaxEventBytes, MaxEventBytes)
	}
	if len(c.HotKeys) > MaxHotKeys {
		return invalid("hot_keys has %d patterns; at most %d are allowed", len(c.HotKeys), MaxHotKeys)
	}
	for _, p := range c.HotKeys {
		if p == "" || len(p) > MaxHotKeyBytes {
			return invalid("hot_keys has a pattern of %d bytes; it must have 1–%d", len(p), MaxHotKeyBytes)
		}
	}
	if err := validateRules("affinity", c.Affinity); err != nil {
		return err
	}
	return validateRules("pin", c.Pin)
}

func (c StreamConfig) validateCounts() error {
	if c.Partitions < 1 || c.Partitions > MaxPartitions {
		return invalid("partitions is %d; it must be 1–%d", c.Partitions, MaxPartitions)
	}
	if c.MaxPartitions < 1 || c.MaxPartitions > MaxPartitions {
		return invalid("max_partitions is %d; it must be 1–%d", c.MaxPartitions, MaxPartitions)
	}
	if c.MinPartitions < 1 || c.MinPartitions > c.MaxPartitions {
		return invalid("min_partitions is %d; it must be 1–max_partitions (%d)", c.MinPartitions, c.MaxPartitions)
	}
	if c.Partitions < c.MinPartitions || c.Partitions > c.MaxPartitions {
		return invalid("partitions is %d; it must lie between min_partitions (%d) and max_partitions (%d)",
			c.Partitions, c.MinPartitions, c.MaxPartitions)
	}
	if c.Replicas != 1 && c.Replicas != 3 && c.Replicas != 5 {
		return invalid("replicas is %d; it must be 1, 3 or 5", c.Replicas)
	}
	if c.MinCopies < 1 || c.MinCopies > c.Replicas {
		return invalid("min_copies is %d; it must be 1–replicas (%d)", c.MinCopies, c.Replicas)
	}
	return nil
}

func (c StreamConfig) validateOrder() error {
	switch c.Order {
	case OrderKey, OrderNone:
		if c.OrderWindowMS != 0 {
			return invalid("order_window_ms is only for order %q", OrderWindow)
		}
	case OrderWindow:
		if c.OrderWindowMS < 1 || c.OrderWindowMS > maxOrderWindowMS {
			return invalid("order_window_ms is %d; with order %q it must be 1–%d", c.OrderWindowMS, OrderWindow, maxOrderWindowMS)
		}
	default:
		return invalid("order is %q; it must be %q, %q or %q", c.Order, OrderKey, OrderWindow, OrderNone)
	}
	return nil
}

func validateRules(field string, rules map[string]string) error {
	if len(rules) > MaxRules {
		return invalid("%s has %d rules; at most %d are allowed", field, len(rules), MaxRules)
	}
	for _, k := range slices.Sorted(maps.Keys(rules)) {
		if k == "" || len(k) > MaxRuleBytes || rules[k] == "" || len(rules[k]) > MaxRuleBytes {
			return invalid("%s rule %.40q: name and value must have 1–%d bytes", field, k, MaxRuleBytes)
		}
	}
	return nil
}

// Equal reports whether both configs mean the same; absent and empty lists are alike.
func (c StreamConfig) Equal(o StreamConfig) bool {
	return c.Partitions == o.Partitions && c.MinPartitions == o.MinPartitions && c.MaxPartitions == o.MaxPartitions &&
		c.Replicas == o.Replicas && c.MinCopies == o.MinCopies &&
		c.Order == o.Order && c.OrderWindowMS == o.OrderWindowMS &&
		slices.Equal(c.HotKeys, o.HotKeys) && maps.Equal(c.Affinity, o.Affinity) && maps.Equal(c.Pin, o.Pin) &&
		c.RetentionMS == o.RetentionMS && c.RetentionBytes == o.RetentionBytes &&
		c.DedupeWindowMS == o.DedupeWindowMS && c.MaxEventBytes == o.MaxEventBytes
}

// fixed names the first field that differs and may not be changed after creation: the number of partitions moves by reshapes
// alone, and readers merge lanes by the order that the stream was created with.
func (c StreamConfig) fixed(o StreamConfig) string {
	switch {
	case c.Partitions != o.Partitions:
		return "partitions"
	case c.Order != o.Order:
		return "order"
	case c.OrderWindowMS != o.OrderWindowMS:
		return "order_window_ms"
	}
	return ""
}

func invalid(format string, args ...any) *wire.Error {
	return wire.Errorf(wire.KindInvalid, "", format, args...)
}

package config

import (
	"slices"
	"time"
)

// Changed lists the keys whose values differ between two configurations, in the order of the table: those that a running
// node can take over (SIGHUP), and those that need a restart.
func Changed(old, new Config) (reloadable, restart []string) {
	for i := range table {
		k := &table[i]
		if k.same(&old, &new) {
			continue
		}
		if k.Reload {
			reloadable = append(reloadable, k.Name)
		} else {
			restart = append(restart, k.Name)
		}
	}
	return reloadable, restart
}

func (k *Key) same(a, b *Config) bool {
	switch f := k.field(a).(type) {
	case *Secret:
		return string(*f) == string(*k.field(b).(*Secret))
	case *[]string:
		return slices.Equal(*f, *k.field(b).(*[]string))
	}
	x, _ := k.get(a)
	y, _ := k.get(b)
	return x == y
}

// Reloaded is old with the reloadable keys of new: what a running node is to hold after a SIGHUP.
func Reloaded(old, new Config) Config {
	out := old
	out.origins = map[string]string{}
	for k, v := range old.origins {
		out.origins[k] = v
	}
	for i := range table {
		k := &table[i]
		if !k.Reload {
			continue
		}
		switch to := k.field(&out).(type) {
		case *string:
			*to = *k.field(&new).(*string)
		case *bool:
			*to = *k.field(&new).(*bool)
		case *int:
			*to = *k.field(&new).(*int)
		case *size:
			*to = *k.field(&new).(*size)
		case *time.Duration:
			*to = *k.field(&new).(*time.Duration)
		case *Millis:
			*to = *k.field(&new).(*Millis)
		case *[]string:
			*to = slices.Clone(*k.field(&new).(*[]string))
		default:
			panic("config: key " + k.Name + " cannot be reloaded")
		}
		delete(out.origins, k.Name)
		if o, ok := new.origins[k.Name]; ok {
			out.origins[k.Name] = o
		}
	}
	return out
}

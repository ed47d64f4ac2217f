package catalog

import (
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

// check verifies what the state relies on, and no more: see StreamConfig.Validate.
func check(c Command) error {
	switch c := c.(type) {
	case CreateStream:
		return checkCreate(&c)
	case UpdateStream:
		if err := CheckName(c.Name); err != nil {
			return err
		}
		return checkConfig(&c.Config)
	case DeleteStream:
		return CheckName(c.Name)
	case BeginImport:
		if c.Export == [16]byte{} {
			return invalid("the import of stream %s names no export", c.Create.Name)
		}
		return checkCreate(&c.Create)
	case EndImport:
		return CheckName(c.Name)
	}
	return invalid("catalog command %T is not known", c)
}

// CheckName verifies a stream's name: [A-Za-z0-9._-]{1,249}, not "." or "..". A leading "_" is reserved for the mesh itself, which
// is the caller's business to refuse.
func CheckName(name string) error {
	if len(name) < 1 || len(name) > MaxNameBytes || name == "." || name == ".." {
		return invalid("stream name %.40q: it must have 1–%d characters of A–Z, a–z, 0–9, '.', '_', '-', and not be \".\" or \"..\"",
			name, MaxNameBytes)
	}
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return invalid("stream name %.40q: character %d is not one of A–Z, a–z, 0–9, '.', '_', '-'", name, i+1)
		}
	}
	return nil
}

// checkConfig bounds what is kept, so that a hostile entry cannot make the state grow beyond its limits.
func checkConfig(c *StreamConfig) error {
	if len(c.HotKeys) > MaxHotKeys {
		return invalid("hot_keys has %d patterns; at most %d are allowed", len(c.HotKeys), MaxHotKeys)
	}
	for _, p := range c.HotKeys {
		if len(p) > MaxHotKeyBytes {
			return invalid("hot_keys has a pattern of %d bytes; at most %d are allowed", len(p), MaxHotKeyBytes)
		}
	}
	if err := validateRules("affinity", c.Affinity); err != nil {
		return err
	}
	if err := validateRules("pin", c.Pin); err != nil {
		return err
	}
	if len(c.Order) > MaxRuleBytes {
		return invalid("order has %d bytes", len(c.Order))
	}
	return nil
}

func checkCreate(c *CreateStream) error {
	if err := CheckName(c.Name); err != nil {
		return err
	}
	if err := checkConfig(&c.Config); err != nil {
		return err
	}
	if c.ID.IsZero() {
		return invalid("stream %s has no incarnation id", c.Name)
	}
	n := len(c.Partitions)
	if n < 1 || n > MaxPartitions {
		return invalid("stream %s has %d partitions; it must have 1–%d", c.Name, n, MaxPartitions)
	}
	if n != c.Config.Partitions {
		return invalid("stream %s has %d partitions, its config says %d", c.Name, n, c.Config.Partitions)
	}
	next := uint64(0) // where the coming range must start
	for i := range c.Partitions {
		p := &c.Partitions[i]
		if i > 0 && p.ID <= c.Partitions[i-1].ID {
			return invalid("stream %s: partition %d does not ascend", c.Name, p.ID)
		}
		if p.Range.Lo != next || p.Range.Hi < p.Range.Lo || (i == n-1) != (p.Range.Hi == ^uint64(0)) {
			return invalid("stream %s: the range of partition %d leaves a gap or overlaps", c.Name, p.ID)
		}
		next = p.Range.Hi + 1
		if len(p.Parents) > 0 || len(p.Children) > 0 {
			return invalid("stream %s: partition %d has relatives at creation", c.Name, p.ID)
		}
		if p.Group != ring.PartitionGroup(c.ID, p.ID) {
			return invalid("stream %s: partition %d names a group that is not its own", c.Name, p.ID)
		}
		if err := checkBirth(p); err != nil {
			return err
		}
	}
	return nil
}

func checkBirth(p *Partition) error {
	b := &p.Birth
	if b.Group != p.Group || b.Kind != replica.KindPartition || b.Self != 0 || b.Empty {
		return invalid("partition %d: its birth record is not that of a founding group of its own", p.ID)
	}
	if len(b.Spec) > MaxSpecBytes {
		return invalid("partition %d: its birth record has a spec of %d bytes; at most %d are allowed", p.ID, len(b.Spec), MaxSpecBytes)
	}
	if len(b.Members) < 1 || len(b.Members) > MaxBirthMembers {
		return invalid("partition %d: its birth record has %d members; it must have 1–%d", p.ID, len(b.Members), MaxBirthMembers)
	}
	voters := 0
	for i, m := range b.Members {
		if m.ID == 0 || m.Node.IsZero() {
			return invalid("partition %d: member %d of its birth record has no id or no node", p.ID, i)
		}
		for _, o := range b.Members[:i] {
			if o.ID == m.ID || o.Node == m.Node {
				return invalid("partition %d: its birth record names a member twice", p.ID)
			}
		}
		if !m.Learner {
			voters++
		}
	}
	if voters == 0 {
		return invalid("partition %d: its birth record has no voter", p.ID)
	}
	return nil
}

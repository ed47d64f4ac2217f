package config

import (
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"
)

// Print writes c as a YAML file that Load would read back, each line with its source; secrets are masked and keys
// without a value, and those of later versions, are left as comments.
func (c Config) Print(w io.Writer) error {
	section := ""
	for i := range table {
		k := &table[i]
		name, indent := k.Name, ""
		if head, tail, ok := strings.Cut(k.Name, "."); ok {
			if head != section {
				if _, err := fmt.Fprintf(w, "%s:\n", head); err != nil {
					return err
				}
			}
			section, name, indent = head, tail, "  "
		} else {
			section = ""
		}
		line, err := c.line(k, name)
		if err != nil {
			return err
		}
		note := c.Origin(k.Name)
		if k.Later != "" {
			note = NotAvailable
		}
		if _, err := fmt.Fprintf(w, "%s%s  # %s\n", indent, line, note); err != nil {
			return err
		}
	}
	return nil
}

func (c Config) line(k *Key, name string) (string, error) {
	text, list := k.get(&c)
	var value any = text
	switch {
	case k.IsList() && len(list) > 0:
		quoted := make([]string, len(list))
		for i, s := range list {
			quoted[i] = fmt.Sprintf("%q", s)
		}
		return name + ": [" + strings.Join(quoted, ", ") + "]", nil
	case text == "" || k.Later != "":
		return "# " + name + ":", nil
	}
	if _, isText := k.field(&c).(*string); !isText && !k.IsSecret() {
		return name + ": " + text, nil // numbers, switches, sizes and spans need no quotes
	}
	out, err := yaml.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("config: print %s: %w", k.Name, err)
	}
	return name + ": " + strings.TrimSpace(string(out)), nil
}

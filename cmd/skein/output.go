package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
)

// outputFlag is -o.
type outputFlag struct{ format string }

func (o *outputFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", "text, json or yaml")
}

func (o *outputFlag) check() error {
	switch o.format {
	case "text", "json", "yaml":
		return nil
	}
	return usagef("-o %s: text, json or yaml is wanted", o.format)
}

// print writes v as JSON or YAML, or calls text for people. v may be a json.RawMessage.
func (p *process) print(o outputFlag, v any, text func() error) error {
	if o.format == "text" {
		return text()
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	data := buf.Bytes()
	if o.format == "yaml" {
		var err error
		if data, err = yaml.JSONToYAML(data); err != nil {
			return err
		}
	}
	_, err := p.out.Write(data)
	return err
}

// table writes rows in aligned columns under a heading.
func (p *process) table(heading string, rows [][]string) error {
	w := tabwriter.NewWriter(p.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(heading, " ", "\t"))
	for _, row := range rows {
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// bold marks a word on a terminal.
func (p *process) bold(s string) string {
	if !p.colour() {
		return s
	}
	return "\x1b[1m" + s + "\x1b[0m"
}

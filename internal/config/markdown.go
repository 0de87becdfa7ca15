package config

import (
	"fmt"
	"strings"
)

// Markdown returns the settings as the table of docs/configuration.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| flag | variable | default | meaning |\n|---|---|---|---|\n")
	for i := range settings {
		s := &settings[i]
		def := s.Default()
		if def != "" {
			def = "`" + def + "`"
		}
		help := strings.ReplaceAll(strings.ReplaceAll(s.Help, "|", `\|`), "`", "")
		if !s.Exported {
			help += " (for the command, not passed on)"
		}
		fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s |\n", s.Name, s.Env(), def, help)
	}
	return b.String()
}

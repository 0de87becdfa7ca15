package main

import (
	"bytes"
	"fmt"
	"strings"
)

func writeReference(b *bytes.Buffer, t *table) error {
	fmt.Fprintf(b, `<!-- Code %s -->

# Interposed calls

The calls that libnvmecr.so interposes. A call is served by nvmecr if the parameter in the column *routed by* names a file of a
mount; every other call goes to the C library unchanged. *Signal-safe* calls may be made from a signal handler on descriptors
of other files. In a *cancellation point* a thread that has been cancelled ends before the call has done anything. In other
calls on files of a mount it does not end.
`, generated)
	for _, g := range t.groups {
		if len(g.calls) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n## %s\n\n| call | also as | routed by | done by | signal-safe | cancellation point |\n|---|---|---|---|---|---|\n", g.title)
		for _, c := range g.calls {
			fmt.Fprintf(b, "| `%s` | %s | %s | `%s` | %s | %s |\n", c.name, quoted(c.aka), c.routedBy(), strings.ReplaceAll(c.expr, "|", "\\|"), yes(c.signal), yes(c.cancel))
		}
	}
	fmt.Fprint(b, "\n## Not interposed\n\n| calls | why |\n|---|---|\n")
	for _, s := range t.skipped {
		fmt.Fprintf(b, "| %s | %s |\n", quoted(s.names), s.reason)
	}
	fmt.Fprint(b, "\n## Functions of the Go runtime\n\n| function | what it does |\n|---|---|\n")
	for _, f := range t.runtime {
		fmt.Fprintf(b, "| `%s` | %s |\n", f.name, f.doc)
	}
	return nil
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func quoted(names []string) string {
	var out []string
	for _, n := range names {
		out = append(out, "`"+n+"`")
	}
	return strings.Join(out, " ")
}

func (c *call) routedBy() string {
	var out []string
	for _, p := range c.params {
		switch p.kind {
		case "fd":
			out = append(out, "descriptor")
		case "path":
			out = append(out, "path")
		case "at":
			out = append(out, "directory descriptor")
		case "dir":
			out = append(out, "stream")
		}
	}
	if len(out) == 0 {
		return "itself"
	}
	return strings.Join(out, ", ")
}

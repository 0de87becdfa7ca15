package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// writeRaw writes the function that routes syscall(2): a switch over the numbers of system calls that calls the wrappers.
func writeRaw(b *bytes.Buffer, t *table) error {
	fmt.Fprintf(b, "/* Code %s */\n\n#include <sys/syscall.h>\n\n#include \"nv.h\"\n", generated)
	for _, c := range t.calls {
		if len(c.raw) > 0 {
			fmt.Fprintf(b, "\n%snv_call_%s(%s) NV_CALL(%q);", c.ret, c.name, c.prototype(), c.name)
		}
	}
	fmt.Fprint(b, `

/* nv_raw calls the wrapper of the system call of that number; false: it has none. */
bool nv_raw(long number, const long *a, long *result)
{
	switch (number) {
`)
	for _, c := range t.calls {
		for _, r := range c.raw {
			if err := c.writeRaw(b, r); err != nil {
				return fmt.Errorf("%s: raw %s: %w", c.name, r.name, err)
			}
		}
	}
	fmt.Fprint(b, "\t}\n\treturn false;\n}\n")
	return nil
}

// rawArguments is the most arguments of a system call.
const rawArguments = 6

// writeRaw writes the case of one system call, if the architecture has it.
func (c *call) writeRaw(b *bytes.Buffer, r raw) error {
	if c.variadicList() || len(c.params) > rawArguments {
		return fmt.Errorf("its parameters are not those of a system call")
	}
	var args []string
	for i, p := range c.params {
		if r.args >= 0 && i >= r.args {
			args = append(args, "0")
			continue
		}
		args = append(args, fmt.Sprintf("(%s)a[%d]", p.ctype(), i))
	}
	text := fmt.Sprintf("nv_call_%s(%s);\n", c.name, strings.Join(args, ", "))
	if c.void() {
		text += "\t\t*result = 0;\n"
	} else {
		text = "*result = " + text
	}
	fmt.Fprintf(b, "#ifdef SYS_%s\n\tcase SYS_%[1]s:\n\t\t%s\t\treturn true;\n#endif\n", r.name, text)
	return nil
}

// ctype returns the C type of a parameter.
func (p *param) ctype() string {
	i := strings.LastIndex(p.decl, p.name)
	before, after := p.decl[:i], p.decl[i+len(p.name):]
	if slices.Contains([]string{"[]", "[2]"}, after) {
		before += "*"
	}
	return strings.TrimSpace(before)
}

package main

import (
	"bytes"
	"fmt"
	"go/format"
	"strings"
)

func writeExports(b *bytes.Buffer, t *table) error {
	var src bytes.Buffer
	fmt.Fprintf(&src, "// Code %s\n\npackage main\n\nimport \"C\"\n\nimport (\n\t\"unsafe\"\n\n\t\"nvmecr/posixshim\"\n)\n", generated)
	for _, f := range t.runtime {
		fmt.Fprintf(&src, "\n// %s: %s\n//\n//export nvmecr_rt_%s\n", f.name, f.doc, f.name)
		fmt.Fprintf(&src, "func nvmecr_rt_%s(%s) (answer int64) {\n", f.name, f.join(func(m marshalling) string { return m.gparams }))
		if !f.life {
			fmt.Fprint(&src, "\tif process.Crashed() {\n\t\treturn crashed\n\t}\n")
		}
		fmt.Fprintf(&src, "\tdefer contain(%q, &answer)\n", f.name)
		if !f.life {
			fmt.Fprint(&src, "\tprocess.Drain()\n")
		}
		args := f.join(func(m marshalling) string { return m.gargs })
		callee := "process." + camel(f.name, true)
		if f.life {
			callee = camel(f.name, false)
		}
		switch {
		case f.value && len(f.paths()) > 0:
			fmt.Fprintf(&src, "\tn, err := %s(%s)\n\treturn result(n, outside(err, %s_out))\n", callee, args, f.paths()[0])
		case f.value:
			fmt.Fprintf(&src, "\treturn result(%s(%s))\n", callee, args)
		case len(f.paths()) > 0:
			fmt.Fprintf(&src, "\treturn result(0, outside(%s(%s), %s_out))\n", callee, args, f.paths()[0])
		default:
			fmt.Fprintf(&src, "\treturn result(0, %s(%s))\n", callee, args)
		}
		fmt.Fprint(&src, "}\n")
	}
	text, err := format.Source(src.Bytes())
	if err != nil {
		return err
	}
	b.Write(text)
	return nil
}

// camel turns mpi_init into mpiInit or MpiInit.
func camel(name string, exported bool) string {
	var out strings.Builder
	for i, word := range strings.Split(name, "_") {
		if i > 0 || exported {
			word = strings.ToUpper(word[:1]) + word[1:]
		}
		out.WriteString(word)
	}
	return out.String()
}

package main

import (
	"bytes"
	"fmt"
	"go/format"
	"hash/crc32"
	"strings"
)

// layout is the version of the layout of messages (posixshim/message.go). It is raised when the layout changes: the golden test of
// the messages then fails.
const layout = 3

// protocol is a checksum of the layout of the messages, of the runtime functions and of their parameters. A server refuses requests
// with another one.
func (t *table) protocol() uint32 {
	var text strings.Builder
	fmt.Fprintln(&text, layout)
	for i, f := range t.runtime {
		if f.remote {
			fmt.Fprintln(&text, i, f.name, f.value, f.params)
		}
	}
	return crc32.ChecksumIEEE([]byte(text.String()))
}

// writeRemote writes the C functions that send calls to a server.
func writeRemote(b *bytes.Buffer, t *table) error {
	fmt.Fprintf(b, "/* Code %s */\n\n#include \"nv.h\"\n#include \"remote.h\"\n\nconst uint32_t nv_protocol = 0x%08x;\n", generated, t.protocol())
	for i, f := range t.runtime {
		if !f.remote {
			continue
		}
		fmt.Fprintf(b, "\nint64_t nv_remote_%s(%s)\n{\n\tstruct nv_message m = {.server = server, .call = %d};\n\n", f.name, f.remoteParams(), i)
		for _, p := range f.params {
			put := marshal[p.kind].cput
			fmt.Fprintf(b, "\t"+put+";\n", p.name)
		}
		fmt.Fprint(b, "\treturn nv_remote_call(&m);\n}\n")
	}
	return nil
}

// writeDispatch writes the Go function by which a server makes such a call.
func writeDispatch(b *bytes.Buffer, t *table) error {
	var src bytes.Buffer
	fmt.Fprintf(&src, "// Code %s\n\npackage posixshim\n\nimport \"syscall\"\n\n", generated)
	fmt.Fprintf(&src, "const protocol uint32 = 0x%08x\n\n// The calls, by their line in calls.txt.\nconst (\n", t.protocol())
	for i, f := range t.runtime {
		if f.remote {
			fmt.Fprintf(&src, "call%s uint32 = %d\n", camel(f.name, true), i)
		}
	}
	fmt.Fprint(&src, ")\n\n// dispatch makes the call of a request.\nfunc (p *Process) dispatch(m *message) (result int, err error) {\n\tswitch m.call {\n")
	for _, f := range t.runtime {
		if !f.remote {
			continue
		}
		var names, takes []string
		for _, p := range f.params {
			names = append(names, p.name)
			takes = append(takes, marshal[p.kind].gtake)
		}
		fmt.Fprintf(&src, "\tcase call%s:\n", camel(f.name, true))
		if len(names) > 0 {
			fmt.Fprintf(&src, "\t\t%s := %s\n", strings.Join(names, ", "), strings.Join(takes, ", "))
		}
		fmt.Fprint(&src, "\t\tif m.complete() {\n")
		result := "err"
		if f.value {
			result = "result, err"
		}
		fmt.Fprintf(&src, "\t\t\t%s = p.%s(%s)\n\t\t\treturn result, err\n\t\t}\n", result, camel(f.name, true), strings.Join(names, ", "))
	}
	fmt.Fprint(&src, "\t}\n\treturn 0, syscall.EPROTO\n}\n")
	text, err := format.Source(src.Bytes())
	if err != nil {
		return err
	}
	b.Write(text)
	return nil
}

package main

import (
	"bytes"
	"fmt"
	"strings"
)

// longestName is NV_NAME of shim/nv.h without the NUL.
const longestName = 47

func writeWrappers(b *bytes.Buffer, t *table) error {
	fmt.Fprintf(b, "/* Code %s */\n\n#include <string.h>\n\n#include \"machine.h\"\n#include \"nv.h\"\n", generated)
	for _, g := range t.groups {
		if len(g.calls) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n/* ---- %s ---- */\n", g.title)
		for _, c := range g.calls {
			if err := writeWrapper(b, c); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return nil
}

// writeReal writes the table of names of the functions that the wrappers hide.
func writeReal(b *bytes.Buffer, t *table) error {
	fmt.Fprintf(b, "/* Code %s */\n\n#include \"nv.h\"\n\n", generated)
	fmt.Fprint(b, "struct nv_real nv_real;\n\n/* In the order of struct nv_real. */\nconst char nv_real_names[][NV_NAME] = {\n")
	for _, c := range t.calls {
		if len(c.name) > longestName {
			return fmt.Errorf("%s: the name is longer than %d bytes", c.name, longestName)
		}
		fmt.Fprintf(b, "\t%q,\n", c.name)
	}
	fmt.Fprint(b, "};\n\n/* The calls a signal handler may make: indices into nv_real_names. */\nconst unsigned short nv_real_signal[] = {\n")
	n := 0
	for i, c := range t.calls {
		if c.signal {
			fmt.Fprintf(b, "\t%d, /* %s */\n", i, c.name)
			n++
		}
	}
	fmt.Fprintf(b, "};\n\nconst unsigned nv_real_signal_count = %d;\n", n)
	return nil
}

// writeWrapper writes one wrapper. That decides whether the call is ours, and then makes the real call or evaluates the expression.
func writeWrapper(b *bytes.Buffer, c *call) error {
	if c.jump {
		fmt.Fprintf(b, "\nNV_JUMP(%q, %q);\n", c.name, c.expr)
		return nil
	}
	fmt.Fprintf(b, "\n%snv_call_%s(%s) NV_CALL(%q);\n", c.ret, c.name, c.prototype(), c.name)
	fmt.Fprintf(b, "%snv_call_%s(%s)\n{\n", c.ret, c.name, c.prototype())
	fmt.Fprint(b, "\tnv_notice_fork();\n")
	c.writeVariadic(b)
	paths, fds, dirs := c.count("path"), c.count("fd"), c.count("dir")
	switch {
	case paths == 1 && fds+dirs == 0:
		c.writeOnePath(b)
	case paths == 2 && fds+dirs == 0:
		c.writeTwoPaths(b)
	case fds == 1 && paths+dirs == 0:
		fmt.Fprintf(b, "\tnv_handle h = nv_callers_handle(fd);\n\n\tif (__builtin_expect(h == 0, 1))\n%s%s%s", c.real(2, nil), c.cancelPoint(), c.result())
	case fds == 2 && paths+dirs == 0:
		fmt.Fprintf(b, "\tnv_handle h = nv_callers_handle(fd), h2 = nv_callers_handle(fd2);\n\n\tif (h == 0 && h2 == 0)\n%s%s", c.real(2, nil), c.result())
	case dirs == 1 && paths+fds == 0:
		fmt.Fprintf(b, "\tstruct nv_dir *dir = nv_dir_of(stream);\n\n\tif (dir == NULL)\n%s%s", c.real(2, nil), c.result())
	case paths+fds+dirs == 0 && c.variadicList():
		fmt.Fprintf(b, "\tva_list ap;\n\n\tva_start(ap, %s);\n\t%sresult = %s;\n\tva_end(ap);\n\treturn result;\n",
			c.params[len(c.params)-2].name, c.ret, c.expr)
	case paths+fds+dirs == 0:
		fmt.Fprint(b, c.result())
	default:
		return fmt.Errorf("cannot route by %d paths, %d descriptors and %d streams", paths, fds, dirs)
	}
	fmt.Fprint(b, "}\n")
	for _, alias := range c.aka {
		fmt.Fprintf(b, "extern __typeof__(nv_call_%s) nv_call_%s NV_CALL(%q) NV_ALIAS(%q);\n", c.name, alias, alias, c.name)
	}
	return nil
}

// cancelPoint returns the code at which a thread that has been cancelled ends.
func (c *call) cancelPoint() string {
	if !c.cancel {
		return ""
	}
	return "\tpthread_testcancel();\n"
}

// writeVariadic writes the code that fetches the variadic argument.
func (c *call) writeVariadic(b *bytes.Buffer) {
	for i, p := range c.params {
		if !p.variadic || p.decl == "" {
			continue
		}
		ctype := strings.TrimSpace(strings.TrimSuffix(p.decl, p.name))
		fmt.Fprintf(b, "\tva_list ap;\n\n\tva_start(ap, %s);\n\t%s = va_arg(ap, %s);\n\tva_end(ap);\n",
			c.params[i-1].name, p.decl, ctype)
	}
}

// variadicList says whether the expression takes the variadic arguments as a va_list.
func (c *call) variadicList() bool {
	n := len(c.params)
	return n > 0 && c.params[n-1].variadic && c.params[n-1].decl == ""
}

func (c *call) writeOnePath(b *bytes.Buffer) {
	dirfd := "AT_FDCWD"
	if c.count("at") == 1 {
		dirfd = "dirfd"
	}
	fmt.Fprint(b, "\tstruct nv_path_at at;\n\n")
	if c.null != "" {
		fmt.Fprintf(b, "\tif (path == NULL)\n\t\treturn %s;\n", c.null)
	}
	fmt.Fprintf(b, "\tif (!nv_route(%s, path, &at))\n%s%s", dirfd, c.real(2, nil), c.cancelPoint())
	outside := map[string]string{"path": "at.path", "dirfd": "AT_FDCWD"}
	fmt.Fprintf(b, "\t%sresult;\n\n\tdo\n\t\tresult = %s;\n\twhile (nv_reroute(&at));\n", c.ret, c.expr)
	fmt.Fprintf(b, "\tif (__builtin_expect(at.outside, 0)) {\n\t\tchar outside[strlen(at.path) + 1];\n\n\t\tnv_go_outside(&at, outside);\n%s\t}\n\treturn result;\n",
		c.real(2, outside))
}

func (c *call) writeTwoPaths(b *bytes.Buffer) {
	first, second := "AT_FDCWD", "AT_FDCWD"
	if c.count("at") == 2 {
		first, second = "dirfd", "dirfd2"
	}
	fmt.Fprintf(b, `	struct nv_path_at at, at2;
	bool ours = nv_route(%[1]s, path, &at);

	if (nv_route(%[2]s, path2, &at2) != ours)
		return nv_cross_device(ours ? %[2]s : %[1]s, ours ? path2 : path);
	if (!ours)
%[3]s%[4]s`, first, second, c.real(2, nil), c.result())
}

// real returns the call of the real function, with some arguments replaced.
func (c *call) real(indent int, replaced map[string]string) string {
	var args []string
	for _, p := range c.params {
		if r, ok := replaced[p.name]; ok {
			args = append(args, r)
			continue
		}
		args = append(args, p.name)
	}
	tabs := strings.Repeat("\t", indent)
	text := fmt.Sprintf("REAL(%s)(%s);\n", c.name, strings.Join(args, ", "))
	if !c.void() {
		return tabs + "return " + text
	}
	brace := strings.Repeat("\t", indent-1)
	return brace + "{\n" + tabs + text + tabs + "return;\n" + brace + "}\n"
}

func (c *call) result() string {
	if c.void() {
		return "\t" + c.expr + ";\n"
	}
	if c.error {
		return "\tint saved = errno, error = " + c.expr + " < 0 ? errno : 0;\n\n\terrno = saved;\n\treturn error;\n"
	}
	return "\treturn " + c.expr + ";\n"
}

func (c *call) void() bool { return strings.TrimSpace(c.ret) == "void" }

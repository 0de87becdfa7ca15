// Gen writes the C wrappers, the runtime's exports and the reference of the
// calls from posixshim/calls.txt, whose head explains the format.
//
// It is run by `go generate ./posixshim`; with -check it writes nothing and
// fails if a file is not what it would write.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	root := flag.String("root", ".", "the module's directory")
	check := flag.Bool("check", false, "compare instead of writing")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run generates every file below root, or compares it with what is there.
func run(root string, check bool) error {
	text, err := os.ReadFile(filepath.Join(root, "posixshim/calls.txt"))
	if err != nil {
		return err
	}
	t, err := parse(string(text))
	if err != nil {
		return err
	}
	files := []struct {
		path  string
		write func(*bytes.Buffer, *table) error
	}{
		{"posixshim/shim/calls_gen.h", writeHeader},
		{"posixshim/shim/calls/calls_gen.c", writeWrappers},
		{"posixshim/shim/base/real_gen.c", writeReal},
		{"posixshim/shim/calls/raw_gen.c", writeRaw},
		{"cmd/libnvmecr/exports_gen.go", writeExports},
		{"posixshim/shim/remote/remote_gen.c", writeRemote},
		{"posixshim/dispatch_gen.go", writeDispatch},
		{"docs/calls.md", writeReference},
	}
	for _, f := range files {
		var b bytes.Buffer
		if err := f.write(&b, t); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		path := filepath.Join(root, f.path)
		if check {
			have, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if !bytes.Equal(have, b.Bytes()) {
				return fmt.Errorf("%s is not what posixshim/calls.txt says; run go generate ./posixshim", f.path)
			}
			continue
		}
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

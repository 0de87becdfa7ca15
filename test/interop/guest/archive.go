package guest

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// An archive is a file system that the kernel unpacks when it boots: cpio's
// "new ASCII format". The first error stays.
type archive struct {
	out  *bufio.Writer
	have map[string]bool
	n    int // number of entries; the last inode number
	err  error
}

func newArchive(f *os.File) *archive {
	return &archive{out: bufio.NewWriterSize(f, 1<<20), have: map[string]bool{"/": true}}
}

// The kinds of entries, as in a mode.
const (
	kindDirectory = 0o040000
	kindDevice    = 0o020000
	kindFile      = 0o100000
	kindLink      = 0o120000
)

// add adds an entry with the directories above it, once.
func (a *archive) add(name string, mode uint32, device uint32, content []byte) {
	name = path.Clean(name)
	if a.have[name] {
		return
	}
	a.have[name] = true
	if above := path.Dir(name); !a.have[above] {
		a.add(above, kindDirectory|0o755, 0, nil)
	}
	a.entry(strings.TrimPrefix(name, "/"), mode, device, content)
}

func (a *archive) entry(name string, mode, device uint32, content []byte) {
	a.n++
	a.printf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.n, mode, 0, 0, 1, 0, len(content), 0, 0, device>>8, device&0xff, len(name)+1, 0, name)
	a.pad(110 + len(name) + 1)
	if a.err == nil {
		_, a.err = a.out.Write(content)
	}
	a.pad(len(content))
}

func (a *archive) printf(format string, args ...any) {
	if a.err == nil {
		_, a.err = fmt.Fprintf(a.out, format, args...)
	}
}

// pad pads n bytes to a multiple of four.
func (a *archive) pad(n int) { a.printf("%s", "\x00\x00\x00"[:-n&3]) }

// close ends the archive.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, 0, nil)
	if a.err == nil {
		a.err = a.out.Flush()
	}
	return a.err
}

// copy adds a file or directory of this machine as name, and for executables the shared libraries at their paths.
func (a *archive) copy(name, from string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := path.Join(name, strings.TrimPrefix(file, from))
		info, err := os.Stat(file) // of the target of a link
		if err != nil {
			return err
		}
		if info.IsDir() {
			if d.Type() == fs.ModeSymlink && file != from {
				return fmt.Errorf("%s: links to directories are not followed", file)
			}
			a.add(to, kindDirectory|0o755, 0, nil)
			return nil
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		a.add(to, kindFile|uint32(info.Mode().Perm()), 0, content)
		if strings.HasPrefix(string(content), "\x7fELF") {
			return a.libraries(file)
		}
		return nil
	})
}

// libraries adds the libraries that the dynamic linker would load for a program or library.
func (a *archive) libraries(file string) error {
	out, err := exec.Command("ldd", file).Output()
	if err != nil {
		return nil // statically linked
	}
	for _, line := range strings.Split(string(out), "\n") {
		line = strings.TrimSpace(line)
		if strings.HasSuffix(line, "not found") {
			return fmt.Errorf("%s: %s", file, line)
		}
		if _, after, ok := strings.Cut(line, "=> "); ok {
			line = after
		}
		library, _, _ := strings.Cut(line, " (0x")
		if !strings.HasPrefix(library, "/") || a.have[library] {
			continue
		}
		content, err := os.ReadFile(library)
		if err != nil {
			return err
		}
		a.add(library, kindFile|0o755, 0, content)
	}
	return a.err
}

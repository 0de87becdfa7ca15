package guest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// unpack returns the listing of a cpio archive, with the contents.
func unpack(t *testing.T, b []byte) []string {
	var all []string
	for {
		var fields [13]uint32
		require.Equal(t, "070701", string(b[:6]))
		for i := range fields {
			_, err := fmt.Sscanf(string(b[6+8*i:14+8*i]), "%08x", &fields[i])
			require.NoError(t, err)
		}
		mode, size, name := fields[1], int(fields[6]), string(b[110:110+fields[11]-1])
		b = b[(110+int(fields[11])+3)&^3:]
		if name == "TRAILER!!!" {
			assert.Empty(t, b)
			return all
		}
		all = append(all, fmt.Sprintf("%s %o %d:%d %q", name, mode, fields[9], fields[10], b[:size]))
		b = b[(size+3)&^3:]
	}
}

func TestArchive(t *testing.T) {
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	require.NoError(t, os.MkdirAll(filepath.Join(tree, "below"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(tree, "below", "script"), []byte("echo"), 0o755))
	require.NoError(t, os.Symlink("below/script", filepath.Join(tree, "link")))

	file, err := os.Create(filepath.Join(dir, "archive"))
	require.NoError(t, err)
	a := newArchive(file)
	a.add("/dev/console", kindDevice|0o600, 5<<8|1, nil)
	a.add("/bin/sh", kindLink|0o777, 0, []byte("busybox"))
	a.add("/bin/sh", kindFile|0o644, 0, []byte("twice"))
	require.NoError(t, a.copy("/opt/tree", tree))
	require.NoError(t, a.close())
	require.NoError(t, file.Close())
	content, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	assert.Equal(t, []string{
		`dev 40755 0:0 ""`, `dev/console 20600 5:1 ""`,
		`bin 40755 0:0 ""`, `bin/sh 120777 0:0 "busybox"`,
		`opt 40755 0:0 ""`, `opt/tree 40755 0:0 ""`, `opt/tree/below 40755 0:0 ""`,
		`opt/tree/below/script 100755 0:0 "echo"`, `opt/tree/link 100755 0:0 "echo"`,
	}, unpack(t, content))
}

// TestLibraries copies a dynamically linked program.
func TestLibraries(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "archive"))
	require.NoError(t, err)
	defer file.Close()
	a := newArchive(file)
	require.NoError(t, a.copy("/sh", Find("sh")))
	var names []string
	for name := range a.have {
		names = append(names, filepath.Base(name))
	}
	all := strings.Join(names, " ")
	assert.Contains(t, all, "libc.so.6")
	assert.Contains(t, all, "ld-linux")
}

func TestKernel(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, "one", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("boot/vmlinuz-6.1-test", "")
	write("boot/config-6.1-test", "CONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_D=\"text\"\n")
	write("lib/modules/6.1-test/modules.builtin", "kernel/virtio-console.ko\n")
	write("lib/modules/6.1-test/modules.dep", strings.Join([]string{
		"kernel/nvmet-tcp.ko.xz: kernel/nvmet.ko.xz kernel/configfs.ko.xz",
		"kernel/nvmet.ko.xz: kernel/configfs.ko.xz",
		"kernel/configfs.ko.xz:",
	}, "\n"))

	all, err := Kernels(dir)
	require.NoError(t, err)
	require.Len(t, all, 1)
	k := all[0]
	assert.Equal(t, Kernel{Name: "one", Version: "6.1-test", root: filepath.Join(dir, "one")}, k)
	for option, want := range map[string]bool{"A": true, "B": true, "C": false, "D": false, "": false} {
		assert.Equal(t, want, k.Has(option), option)
	}

	m, err := k.modules()
	require.NoError(t, err)
	order, err := m.order([]string{"configfs", "virtio_console", "nvmet_tcp wq=1", "nvmet"})
	require.NoError(t, err)
	assert.Equal(t, []module{
		{"kernel/configfs.ko.xz", ""}, {"kernel/nvmet.ko.xz", ""}, {"kernel/nvmet-tcp.ko.xz", "wq=1"},
	}, order)
	_, err = m.order([]string{"nvme"})
	assert.ErrorContains(t, err, "no module nvme")

	none, err := Kernels(filepath.Join(dir, "none"))
	assert.NoError(t, err)
	assert.Empty(t, none)
}

func TestConsole(t *testing.T) {
	g := &Guest{dir: t.TempDir()}
	assert.Empty(t, g.Console())
	require.NoError(t, os.WriteFile(g.console(), bytes.Repeat([]byte("line\n"), 100), 0o600))
	assert.Equal(t, 39, strings.Count(g.Console(), "\n"))
}

//go:build !race

package posixshim_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/target"
	"nvmecr/posixshim"
)

// overTCP exports the namespace of the store by a target in this process.
func (s *store) overTCP() *store {
	const nqn = "nqn.2014-08.org.nvmexpress:uuid:6d0d2a0e-62a7-4ad6-9d2f-0d2f6c7a4f10"
	memory, err := target.NewMemory(128*nvmf.MiB, 4096)
	require.NoError(s.t, err)
	tgt, err := target.New(target.Config{Subsystems: []target.Subsystem{{
		NQN: nqn, Namespaces: []target.Namespace{{NSID: 1, Backing: memory}},
	}}})
	require.NoError(s.t, err)
	addr, err := tgt.Listen("127.0.0.1:0")
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), posixshim.Hang)
		defer cancel()
		assert.NoError(s.t, tgt.Close(ctx))
	})
	host, port, err := net.SplitHostPort(addr.String())
	require.NoError(s.t, err)
	s.target = nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: host, Service: port, SubNQN: nqn, NSID: 1}.String()
	return s
}

// TestCloseEverything checks that a program which closes and replaces all descriptors does not close those of the
// runtime.
func TestCloseEverything(t *testing.T) {
	const want = `a: wrote 4194304, read 4194304, same 1, sync 0
lowest: 3, hidden among the low ones: 0, poller, lock, and device: 1
open: others can write, seen 1
closed: left 0, still hidden 1
closed: others can write, seen 1
b: wrote 4194304, read 4194304, same 1, sync 0
open again: others can write, seen 1
close_range: 0
closed: left 0, still hidden 1
c: wrote 4194304, read 4194304, same 1, sync 0
closefrom: left 0, hidden 1
d: wrote 4194304, read 4194304, same 1, sync 0
dup2: refused 1
e: wrote 4194304, read 4194304, same 1, sync 0
f: wrote 4194304, read 4194304, same 1, sync 0
after dup: others can write, seen 1
child: hidden 1, left 0
child: read 4194304
exit: 0
after fork: others can write, seen 1
g: wrote 4194304, read 4194304, same 1, sync 0
`
	for _, c := range []struct {
		name  string
		store *store
	}{{"file", newStore(t)}, {"TCP", newStore(t).overTCP()}} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, err := finish(t, c.store.command(compile(t, "gcc", "closes.c"), mount))
			require.NoError(t, err, "%s\n%s", stdout, stderr)
			assert.Equal(t, want, stdout)
			assert.Empty(t, stderr)
			assert.Equal(t, "g", output(t, c.store.command("head", "-c", "1", mount+"/g")))
		})
	}
}

// TestNumbersOfChoice checks that an application gets the descriptor numbers of its choice while threads of the
// runtime open descriptors.
func TestNumbersOfChoice(t *testing.T) {
	program := compile(t, "gcc", "numbers.c", "-Wall", "-Wextra", "-Werror")
	assert.Equal(t, "done\n", output(t, newStore(t).command(program, mount, "10000")))
}

// TestLoadWhileOthersOpen lets other threads open descriptors while the runtime is loaded. Descriptors of the runtime
// must be distinguished from theirs.
func TestLoadWhileOthersOpen(t *testing.T) {
	s := newStore(t)
	program := compile(t, "gcc", "openers.c", "-pthread")
	for range 10 {
		assert.Equal(t, "failed: 0\n", output(t, s.command(program, mount)))
	}
}

// TestLowDescriptorsAreTheApplications checks that a shell can redirect each of the descriptors 3 to 9.
func TestLowDescriptorsAreTheApplications(t *testing.T) {
	for _, shell := range []string{"dash", "bash"} {
		tool(t, shell)
		script := `for i in 3 4 5 6 7 8 9; do eval "exec $i>$0/of$i"; done
for i in 3 4 5 6 7 8 9; do eval "echo $i >&$i; exec $i>&-"; done; cat $0/of*`
		assert.Equal(t, "3\n4\n5\n6\n7\n8\n9\n", output(t, newStore(t).command(shell, "-c", script, mount)), shell)
	}
}

// TestStreamsOnAFullFileSystem checks that a stream reports ENOSPC, as on a full tmpfs, if the space ends in the
// middle of its buffer.
func TestStreamsOnAFullFileSystem(t *testing.T) {
	s := newStore(t)
	require.NoError(t, os.Truncate(filepath.Join(s.run, "image"), 40<<20))
	assert.Equal(t, `fwrite: some 1, all 0
fwrite: fails ENOSPC, ferror 1
fclose after it: succeeds 0
fwrite in pieces: fails ENOSPC, ferror 1
fwrite again: fails ENOSPC, ferror 1
fprintf: fails ENOSPC, ferror 1
fputs: fails ENOSPC, ferror 1
fwrite to the buffer: succeeds 0, ferror 0
fflush: fails ENOSPC, ferror 1
fclose: fails ENOSPC
fseek: fails ENOSPC, ferror 1
`, output(t, s.command(compile(t, "gcc", "full.c"), mount)))
}

package fuseview

import (
	"bufio"
	"context"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
	"nvmecr/posixshim"
)

// newProcess returns a process with an empty file system in memory.
func newProcess(t *testing.T) *posixshim.Process {
	ctx := context.Background()
	dev, err := memdev.New(64*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	seg := microfs.Segment{Length: 64 * nvmf.MiB}
	require.NoError(t, microfs.Format(ctx, dev, seg, microfs.FormatOptions{Generation: 1, Size: 1}))
	p := posixshim.New(func(bool) (*vfs.Mount, error) {
		mounted, err := microfs.Mount(ctx, dev, seg, microfs.Options{Generation: 1})
		if err != nil {
			return nil, err
		}
		return &vfs.Mount{FS: vfs.Microfs(mounted), Writable: true, Close: mounted.Unmount}, nil
	}, t.Logf)
	t.Cleanup(func() { assert.NoError(t, p.Finish()) })
	return p
}

// newView mounts a view until the end of the test, or skips the test if there is no FUSE. The test itself must not
// use the view, since the server of the view is in the same process.
func newView(t *testing.T, mount func(dir string) (*View, error)) *View {
	dir := t.TempDir()
	v, err := mount(dir)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	t.Cleanup(func() {
		_ = v.Detach() // the test may have unmounted it
		v.Wait()
	})
	assert.Equal(t, dir, v.Dir())
	return v
}

// sh runs a script in the root of a view and returns its output.
func sh(v *View, script string) string {
	out, err := exec.Command("sh", "-c", `cd "$0" && { `+script+"\n}", v.Dir()).CombinedOutput()
	if err != nil {
		out = append(out, err.Error()...)
	}
	return string(out)
}

// TestMount checks that a single tree is at the root of a view, and that several trees are in directories.
func TestMount(t *testing.T) {
	for _, tt := range []struct {
		name  string
		trees []Tree
		dirs  []string
	}{
		{"one", []Tree{{}}, []string{"."}},
		{"one with a name", []Tree{{Name: "a", Number: 1}}, []string{"a"}},
		{"several", []Tree{{Name: "a", Number: 1}, {Name: "b", Number: maxNumber}}, []string{"a", "b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for i := range tt.trees {
				tt.trees[i].Process = newProcess(t)
			}
			v := newView(t, func(dir string) (*View, error) { return Mount(dir, tt.trees, Options{}) })
			numbers := map[string]bool{}
			for _, dir := range tt.dirs {
				assert.Equal(t, dir, sh(v, "printf "+dir+" > "+dir+"/f; cat "+dir+"/f"))
				numbers[sh(v, "stat -c %i "+dir+"/f")] = true
			}
			assert.Len(t, numbers, len(tt.dirs), "files of two trees have two numbers")
			require.NoError(t, v.Close())
			v.Wait()
			assert.Empty(t, sh(v, "ls"))
		})
	}
}

// TestMountRefused checks that mount errors name the directory.
func TestMountRefused(t *testing.T) {
	p := newProcess(t)
	_, err := Mount(t.TempDir(), []Tree{{Process: p}, {Name: "b", Process: p}}, Options{})
	assert.ErrorIs(t, err, syscall.EINVAL)
	missing := filepath.Join(t.TempDir(), "missing")
	_, err = Mount(missing, []Tree{{Process: p}}, Options{})
	assert.ErrorContains(t, err, missing)
	dir := t.TempDir()
	assert.ErrorContains(t, Detach(dir), dir)
}

// TestMountTrees checks that looking up a name creates its tree, and that self is the tree of the caller.
func TestMountTrees(t *testing.T) {
	p := newProcess(t)
	var unknown atomic.Bool
	trees := Trees{
		Tree: func(name string) (Tree, bool) {
			return Tree{Name: name, Process: p, Number: 3}, strings.HasPrefix(name, "t")
		},
		Self: func(int) (string, error) {
			if unknown.Load() {
				return "", syscall.ESRCH
			}
			return "t1", nil
		},
		Names: func() []string { return []string{"t1"} },
	}
	v := newView(t, func(dir string) (*View, error) { return MountTrees(dir, trees, Options{}) })
	assert.Equal(t, "hello\nt1\nself\nt1\n", sh(v, "echo hello > t1/f; cat self/f; readlink self; ls"))
	assert.Contains(t, sh(v, "LC_ALL=C stat other"), "No such file or directory")
	unknown.Store(true)
	assert.Contains(t, sh(v, "LC_ALL=C cat self/f"), "No such file or directory")
}

// TestCalls makes system calls on a tree, and on unlinked files.
func TestCalls(t *testing.T) {
	for _, tt := range []struct {
		name         string
		o            Options
		script, want string
	}{
		{"files", Options{}, "echo one > f; echo two >> f; cat f; truncate -s 2 f; cat f; chmod 640 f; stat -c ' %a %s' f", "one\ntwo\non 640 2\n"},
		{"names", Options{}, "mkdir d; echo x > d/f; ln d/f g; ln -s g l; mv d e; ls; cat l; rm g e/f; rmdir e; ls", "e\ng\nl\nx\nl\n"},
		{"many names", Options{}, "seq 3000 | xargs touch; ls | wc -l", "3000\n"},
		{"a removed file", Options{}, "echo x > f; exec 3< f; rm f; stat -Lc '%s %h' /dev/fd/3; cat <&3", "2 0\nx\n"},
		{"a replaced file", Options{}, "echo x > f; exec 3< f; echo other > g; mv g f; stat -Lc %s /dev/fd/3; cat <&3; cat f", "2\nx\nother\n"},
		{"a renamed file", Options{}, "echo x > f; exec 3< f; mv f g; echo y >> g; stat -Lc %s /dev/fd/3; cat <&3", "4\nx\ny\n"},
		{"read only", Options{ReadOnly: true}, "LC_ALL=C mkdir d 2>&1 | grep -o Read-only", "Read-only\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(t, func(dir string) (*View, error) { return Mount(dir, []Tree{{Process: newProcess(t)}}, tt.o) })
			assert.Equal(t, tt.want, sh(v, tt.script))
		})
	}
}

// TestWithOpen closes a file while another call uses its handle.
func TestWithOpen(t *testing.T) {
	p := newProcess(t)
	n := &node{tree: &tree{process: p}}
	open, err := n.withOpen(func(posixshim.Handle) error { return syscall.EIO })
	assert.False(t, open)
	assert.NoError(t, err)
	h, err := p.Open(posixshim.PathAt{Path: "/f"}, syscall.O_CREAT|syscall.O_RDWR, 0o600)
	require.NoError(t, err)
	f := n.add(h)
	released := make(chan syscall.Errno)
	open, err = n.withOpen(func(h posixshim.Handle) error {
		go func() { released <- f.Release(context.Background()) }()
		assert.Eventually(t, func() bool { // no other call can get the handle now
			n.mu.Lock()
			defer n.mu.Unlock()
			return len(n.open) == 0
		}, time.Minute, time.Microsecond)
		for range 1000 {
			if _, err := p.FileAttr(h); err != nil {
				return err
			}
			runtime.Gosched()
		}
		return nil
	})
	assert.True(t, open)
	assert.NoError(t, err)
	assert.Zero(t, <-released)
	_, err = p.FileAttr(posixshim.Handle(h))
	assert.ErrorIs(t, err, syscall.EBADF)
}

// TestDetach checks that Close fails with EBUSY while a view is in use, and that Detach unmounts it and leaves open
// files usable.
func TestDetach(t *testing.T) {
	v := newView(t, func(dir string) (*View, error) { return Mount(dir, []Tree{{Process: newProcess(t)}}, Options{}) })
	user := exec.Command("sh", "-c", `exec 3> "$0/f"; echo open; read go; echo x >&3 && echo written`, v.Dir())
	in, err := user.StdinPipe()
	require.NoError(t, err)
	pipe, err := user.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, user.Start())
	out := bufio.NewReader(pipe)
	line, err := out.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "open\n", line)
	assert.Error(t, v.Close())
	require.NoError(t, v.Detach())
	assert.Empty(t, sh(v, "ls"))
	_, err = in.Write([]byte("go\n"))
	require.NoError(t, err)
	line, err = out.ReadString('\n')
	assert.NoError(t, err)
	assert.Equal(t, "written\n", line)
	require.NoError(t, user.Wait())
	v.Wait()
}

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTargetsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const port = "1" // a free port might be used by then
	const friend = "nqn.2014-08.org.example:friend"
	_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M", "--allow-host", friend)

	for name, c := range map[string]struct {
		flags []string
		words []string
	}{
		"nobody listens":     {[]string{"--target", "trtype:TCP traddr:127.0.0.1 trsvcid:" + port + " subnqn:x ns:1"}, []string{"127.0.0.1:" + port, "refused"}},
		"wrong NQN":          {[]string{"--hostnqn", friend, "--target", strings.Replace(target, "org.nvmecr:target", "org.nvmecr:other", 1)}, []string{"org.nvmecr:other", "no such subsystem"}},
		"wrong namespace":    {[]string{"--hostnqn", friend, "--target", strings.Replace(target, "ns:1", "ns:7", 1)}, []string{"ns:7", "no such namespace"}},
		"host not allowed":   {[]string{"--hostnqn", "nqn.2014-08.org.example:stranger", "--target", target}, []string{"does not allow", "nqn.2014-08.org.example:stranger"}},
		"not a namespace":    {[]string{"--target", "trtype:TCP"}, []string{"traddr is missing"}},
		"twice the same":     {[]string{"--target", target, "--target", target}, []string{"named twice"}},
		"no such file":       {[]string{"--target", "file:/nonexistent/image"}, []string{"/nonexistent/image", "no such file"}},
		"not a block device": {[]string{"--target", "file:/dev/null"}, []string{"/dev/null"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := call(t, s, append(append([]string{"run"}, c.flags...), "--", "echo", "started")...)
			r.refused(t, c.words...)
			assert.Empty(t, r.stdout, "the job does not start")
		})
	}
}

// TestStrangersDataIsKept tries namespaces with foreign data.
func TestStrangersDataIsKept(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	store := func(patch func(t *testing.T, f *os.File)) string {
		path := image(t, s, 64, "")
		sh(t, s, "seq 1000 | dd of=/nvmecr/a status=none", "--name", "mine", "--target", "file:"+path).ok(t)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		patch(t, f)
		return path
	}
	for name, c := range map[string]struct {
		path  func(t *testing.T) string
		words []string
	}{
		"another store": {func(t *testing.T) string {
			path := image(t, s, 64, "")
			sh(t, s, "echo > /nvmecr/a", "--name", "theirs", "--target", "file:"+path).ok(t)
			return path
		}, []string{`"theirs"`}},
		"not ours at all": {func(t *testing.T) string {
			return image(t, s, 64, strings.Repeat("something else ", 1000))
		}, []string{"image"}},
		"a later version": {func(t *testing.T) string {
			return store(func(t *testing.T, f *os.File) {
				for _, slot := range []int64{0, 1 << 20} {
					_, err := f.WriteAt([]byte{99}, slot+16)
					require.NoError(t, err)
				}
			})
		}, []string{"version 99"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := c.path(t)
			before := digest(t, path)
			r := sh(t, s, "echo no > /nvmecr/a", "--name", "mine", "--target", "file:"+path)
			r.refused(t, c.words...)
			assert.Equal(t, before, digest(t, path), "nothing is overwritten")
		})
	}
}

// TestDamagedSuperblock overwrites the head of the partition: the application gets an error, and the partition is not formatted again.
func TestDamagedSuperblock(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	path := image(t, s, 64, "")
	target := "file:" + path
	sh(t, s, "seq 1000 | dd of=/nvmecr/a status=none", "--target", target).ok(t)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	const head = 2 << 20 // the run record is before it
	_, err = f.WriteAt([]byte(strings.Repeat("damage! ", 1<<14)), head)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	before := digestFrom(t, path, head)
	r := sh(t, s, "echo no > /nvmecr/a", "--target", target)
	assert.NotEqual(t, 0, r.code)
	assert.Contains(t, r.stderr, "corrupt")
	assert.Equal(t, before, digestFrom(t, path, head))
	call(t, s, "ls", "--target", target).refused(t, "corrupt")
}

func TestDiskFull(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := sh(t, s, "dd if=/dev/zero of=/nvmecr/big bs=1M count=100", "--size", "32M")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.stderr, "No space left on device")
	size := strings.TrimSpace(sh(t, s, "stat -c %s /nvmecr/big").ok(t))
	assert.Greater(t, len(size), 7, "the file keeps what it had: %s bytes", size)
	sh(t, s, "rm /nvmecr/big && echo space > /nvmecr/small").ok(t)
	assert.Equal(t, "space\n", sh(t, s, "cat /nvmecr/small").ok(t))
}

// TestRuntimeMissing removes the runtime: the application gets an error, and no local directory instead.
func TestRuntimeMissing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	bin := filepath.Join(s.Dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o700))
	for _, name := range []string{"nvmecr", "libnvmecr.so"} {
		content, err := os.ReadFile(filepath.Join(filepath.Dir(s.Nvmecr), name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), content, 0o700))
	}
	s.Nvmecr = filepath.Join(bin, "nvmecr")
	mount := filepath.Join(s.Dir, "mount")
	require.NoError(t, os.Mkdir(mount, 0o700))
	r := sh(t, s, "echo no > "+mount+"/a", "--mount", mount, "--size", "64M")
	assert.NotEqual(t, 0, r.code)
	assert.Contains(t, r.stderr, "libnvmecr-plain.so")
	assert.NoFileExists(t, filepath.Join(mount, "a"))

	require.NoError(t, os.Remove(filepath.Join(bin, "libnvmecr.so")))
	sh(t, s, "true").refused(t, "libnvmecr.so", "run make")
}

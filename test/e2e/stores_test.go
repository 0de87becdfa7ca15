package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/proc"
)

// TestBadSizeKeepsTheStore requests invalid sizes.
func TestBadSizeKeepsTheStore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, "echo one > /nvmecr/a", "--size", "64M").ok(t)
	sh(t, s, "true", "--fresh", "--size", "1").refused(t, "--size", "at least 4 MiB")
	sh(t, s, "true", "--fresh", "--size", "8000000T").refused(t, "--size")
	assert.Equal(t, "one\n", call(t, s, "cat", "/a").ok(t))
	assert.Equal(t, "one\n", sh(t, s, "cat /nvmecr/a").ok(t))

	// A store that could not be created leaves nothing.
	sh(t, s, "true", "--name", "y", "--size", "3M").refused(t, "at least 4 MiB")
	call(t, s, "ls", "--name", "y").refused(t, `no store "y"`, "there are: default)")
	assert.NoDirExists(t, filepath.Dir(s.Image("y")))
}

// TestAnotherUsersStore changes the owner of a store: root does not touch it.
func TestAnotherUsersStore(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can give a store away")
	}
	s := newStage(t)
	sh(t, s, "echo one > /nvmecr/a", "--size", "64M").ok(t)
	dir := filepath.Dir(s.Image("default"))
	require.NoError(t, os.Chown(dir, 12345, 12345))
	before := digest(t, filepath.Join(dir, "store.json"))
	sh(t, s, "true").refused(t, "another user", "12345")
	sh(t, s, "true", "--fresh").refused(t, "another user", "12345")
	call(t, s, "release").refused(t, "another user", "12345")
	assert.Equal(t, before, digest(t, filepath.Join(dir, "store.json")))
	assert.Equal(t, "one\n", call(t, s, "cat", "/a").ok(t), "but may look")
}

// TestRunInsideAJob starts a run of another store inside a job.
func TestRunInsideAJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	nested := s.Nvmecr + " run --name in --size 64M -- sh -c 'echo in > /nvmecr/a'"
	sh(t, s, "echo out > /nvmecr/a; "+nested, "--name", "out", "--size", "64M").ok(t)
	assert.Equal(t, "out\n", call(t, s, "cat", "--name", "out", "/a").ok(t))
	assert.Equal(t, "in\n", call(t, s, "cat", "--name", "in", "/a").ok(t))
	look := s.Nvmecr + " cat /a; " + s.Nvmecr + " cat --name in /a"
	assert.Equal(t, "out\nin\n", sh(t, s, look, "--name", "out").ok(t))
}

// TestReleasedStoreShowsNothing releases a full store, creates another one on its namespace, and reads everything that can be read there.
func TestReleasedStoreShowsNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	target := "file:" + image(t, s, 64, "")
	sh(t, s, `yes "secret of one" | dd of=/nvmecr/a bs=64k status=none; sync; true`, "--name", "one", "--target", target).ok(t)
	b, err := os.ReadFile(strings.TrimPrefix(target, "file:"))
	require.NoError(t, err)
	require.Greater(t, strings.Count(string(b), "secret of one"), 3<<20)
	call(t, s, "release", "--name", "one").ok(t)
	script := `cd /nvmecr; ls -A; echo x > few; truncate -s 100000 few; truncate -s 60M hole
		size=$(($(stat -f -c '%a * %S' .))); fallocate -l $size all
		for f in *; do tr -d '\000' <$f | od -An -c; done; stat -c %s all`
	r := sh(t, s, script, "--name", "two", "--target", target)
	out := strings.Fields(r.ok(t))
	require.Len(t, out, 3)
	assert.Equal(t, []string{"x", "\\n"}, out[:2], "all else is zeros")
	size, err := strconv.Atoi(out[2])
	require.NoError(t, err)
	assert.Greater(t, size, 40<<20)
}

// TestOneBadRankHidesNoOther damages rank 0's partition.
func TestOneBadRankHidesNoOther(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	path := image(t, s, 64, "")
	target := "file:" + path
	for _, rank := range []string{"0", "1"} {
		call(t, s, "run", "--target", target, "--", "env", "PMI_RANK="+rank, "PMI_SIZE=2", "sh", "-c", "echo $PMI_RANK > /nvmecr/a").ok(t)
	}
	damage(t, path)
	dest := filepath.Join(s.Dir, "out")
	for _, args := range [][]string{{"ls"}, {"stat"}, {"stat", "/a"}, {"cp", "/", dest}, {"cat", "/a"}} {
		r := call(t, s, append(args, "--target", target)...)
		r.refused(t, "rank 0", "nvmecr cp")
		if args[0] != "cp" {
			assert.Contains(t, r.stdout, "1", "what rank 1 holds: %v", args)
		}
	}
	b, err := os.ReadFile(filepath.Join(dest, "rank1", "a"))
	require.NoError(t, err)
	assert.Equal(t, "1\n", string(b))
}

// damage makes the partition of rank 0 in an image unreadable.
func damage(t *testing.T, path string) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte(strings.Repeat("damage! ", 4<<17)), 2<<20)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestFixedSettingsAreRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, "echo one > /nvmecr/a", "--size", "64M", "--hugeblock", "64K", "--data-checksum", "off").ok(t)
	sh(t, s, "true", "--hugeblock", "32K").refused(t, "hugeblock", "64 KiB")
	sh(t, s, "true", "--data-checksum", "on").refused(t, "--data-checksum=off")
	assert.Equal(t, "one\n", sh(t, s, "cat /nvmecr/a", "--hugeblock", "64K").ok(t))
	sh(t, s, "true", "--fresh", "--size", "64M", "--data-checksum", "on").ok(t)
}

func TestMemoryIsNotRecorded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := sh(t, s, "true", "--target", "mem:64M")
	r.ok(t)
	assert.Contains(t, r.stderr, "gone when the process ends")
	call(t, s, "ls").refused(t, `no store "default"`)
	sh(t, s, "true", "--target", "").refused(t, "--target")
}

func TestMountsThatHideTooMuch(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, mount := range []string{"/proc", "/dev/shm/x", s.Dir, filepath.Dir(s.Dir), filepath.Join(s.Dir, "state"), filepath.Join(s.Dir, "tmp"), "/usr"} {
		sh(t, s, "true", "--mount", mount).refused(t, "--mount "+mount)
	}
}

// TestReadOnlyImage reads an image without write permission.
func TestReadOnlyImage(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	path := image(t, s, 64, "")
	sh(t, s, `printf one > "/nvmecr/a
b"`, "--target", "file:"+path).ok(t)
	require.NoError(t, os.Chmod(path, 0o400))
	assert.Contains(t, call(t, s, "ls", "--target", "file:"+path).ok(t), `"/a\nb"`)
}

// TestReleaseOfABrokenStore damages the table of a local store.
func TestReleaseOfABrokenStore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, size := range []int64{0, 3 << 20} {
		sh(t, s, "echo one > /nvmecr/a", "--size", "64M").ok(t)
		require.NoError(t, os.Truncate(s.Image("default"), size))
		sh(t, s, "true").refused(t, "truncated from 64 MiB", "nvmecr release")
		call(t, s, "ls").refused(t, "truncated from 64 MiB", "nvmecr release")
		call(t, s, "release").ok(t)
		assert.NoFileExists(t, s.Image("default"))
	}
}

// TestStoppedTarget stops the embedded target: the run ends nevertheless.
func TestStoppedTarget(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	fifo := filepath.Join(s.Dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	job, err := s.Start(append(s.RunFlags("default", "--size", "64M"), "sh", "-c", "echo $PPID; read x < "+fifo))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(job.Stdout.Lines()) > 0 || job.Ended() }, hang, time.Millisecond)
	require.NotEmpty(t, job.Stdout.Lines())
	run, err := strconv.Atoi(job.Stdout.Lines()[0])
	require.NoError(t, err)
	for _, p := range proc.Descendants(run) {
		if line, err := os.ReadFile("/proc/" + strconv.Itoa(p) + "/cmdline"); err == nil && strings.Contains(string(line), "--until-eof") {
			stop(t, p)
		}
	}
	require.NoError(t, os.WriteFile(fifo, []byte("go\n"), 0))
	require.NoError(t, job.Wait(t.Context()))
	sh(t, s, "true").ok(t)
}

func TestTargetLines(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	path := image(t, s, 64, "")
	_, line := serve(t, s, "--listen", "0.0.0.0:0", "--allow-any-host", "--namespace", "file:"+path)
	assert.Contains(t, line, "adrfam:IPv4")
	assert.NotContains(t, line, "0.0.0.0")
	sh(t, s, "echo one > /nvmecr/a", "--target", line).ok(t)
	call(t, s, "target", "--listen", "127.0.0.1:0", "--namespace", "file:"+path).refused(t, "served already")
	for _, args := range [][]string{
		{"--nqn", "nqn.2014-08.org.nvmexpress.discovery"}, {"--nqn", "junk"}, {"--allow-host", "junk"},
	} {
		r := call(t, s, append([]string{"target", "--listen", "127.0.0.1:0", "--namespace", "mem:64M"}, args...)...)
		r.refused(t, args[0])
		assert.Equal(t, 2, r.code)
	}
	call(t, s, "target", "--namespace", "file:"+path+"?siz=4M").refused(t, "?size=SIZE")
	call(t, s, "target", "--namespace", "file:"+path+"?size=32M").refused(t, "64 MiB")
}

// TestRootBelongsToTheUser checks that the root directory belongs to the job's user, and that no other user can access it.
func TestRootBelongsToTheUser(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := sh(t, s, "stat -c '%u %g %A' /nvmecr")
	assert.Equal(t, strconv.Itoa(os.Geteuid())+" "+strconv.Itoa(os.Getegid())+" drwx------\n", r.ok(t))
}

// TestOneNamespaceTwice checks that two addresses of one namespace are recognised, and that nothing is written.
func TestOneNamespaceTwice(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	job, first := serve(t, s, "--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0", "--namespace", "mem:64M")
	lines := printed(t, job, 2)
	for _, more := range [][]string{nil, {"--fresh"}} {
		flags := append([]string{"run", "--name", "x", "--target", first, "--target", lines[1]}, more...)
		r := call(t, s, append(flags, "--", "echo", "started")...)
		r.refused(t, "one namespace", "127.0.0.1", "127.0.0.2", "name it once")
	}
	sh(t, s, "echo here > /nvmecr/a", "--name", "x", "--target", lines[1]).ok(t)
	assert.Equal(t, "here\n", sh(t, s, "cat /nvmecr/a", "--name", "x", "--target", lines[1]).ok(t))
}

// TestStores lists the stores of this host.
func TestStores(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M")
	sh(t, s, "echo > /nvmecr/a", "--name", "here", "--size", "64M").ok(t)
	sh(t, s, "echo > /nvmecr/a; "+s.Nvmecr+" stores", "--name", "there", "--target", target).ok(t)
	r := call(t, s, "stores", "--json")
	r.ok(t)
	var list []struct {
		Name, Where       string
		Size, Used, Ranks uint64
		InUse             bool `json:"in_use"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &list))
	require.Len(t, list, 2)
	assert.Equal(t, "here", list[0].Name)
	assert.EqualValues(t, 64<<20, list[0].Size)
	assert.Less(t, list[0].Used, list[0].Size)
	assert.EqualValues(t, 1, list[0].Ranks)
	assert.Equal(t, target, list[1].Where)
	assert.False(t, list[0].InUse || list[1].InUse)
	r = sh(t, s, s.Nvmecr+" stores", "--name", "here")
	r.ok(t)
	assert.Regexp(t, `here +64 MiB .* yes `, r.stdout)

	// A store that cannot be read does not hide the others.
	sh(t, s, "echo > /nvmecr/a", "--name", "broken", "--size", "64M").ok(t)
	require.NoError(t, os.WriteFile(s.Image("broken"), bytes.Repeat([]byte("x"), 1<<20), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(s.Image("here")), "store.json"), []byte("{"), 0o600))
	r = call(t, s, "stores")
	r.refused(t, "store broken: ", "store here: ")
	assert.Regexp(t, `(?m)^broken +1 MiB .* \? `, r.stdout)
	assert.Regexp(t, `(?m)^here .* \? `, r.stdout)
	assert.Regexp(t, `(?m)^there .* no `, r.stdout)
}

// TestDiscover checks that the output of discover works as --target.
func TestDiscover(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, target := serve(t, s, "--listen", "[::1]:0", "--namespace", "mem:64M")
	port := portOf(t, target)
	r := call(t, s, "discover", "[::1]:"+port)
	r.ok(t)
	assert.Equal(t, target+"\n", r.stdout)
	sh(t, s, "echo found > /nvmecr/a; cat /nvmecr/a", "--name", "x", "--target", strings.TrimSpace(r.stdout)).ok(t)
	call(t, s, "discover", "127.0.0.1:1", "--timeout", "2s").refused(t, "127.0.0.1:1")
	call(t, s, "discover", "127.0.0.1:x").refused(t, "port")
	call(t, s, "discover").refused(t, "takes ADDRESS[:PORT]")
}

package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo/demotest"
	"nvmecr/internal/shortdir"
)

// nobody is an unprivileged user.
const nobody = 65534

// asNobody returns the output of a command line that runs as nobody, on a host with or without fusermount3.
func asNobody(t *testing.T, home string, fusermount bool, privileges string, argv ...string) (stdout, stderr string) {
	// Every user may open the device, regardless of this host's rules.
	script := `mount -t tmpfs tmpfs /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse && exec "$@"`
	if !fusermount {
		script = `for f in /usr/bin/fusermount3 /usr/bin/fusermount; do if [ -e $f ]; then mount --bind /dev/null $f; fi; done; ` + script
	}
	line := append([]string{"--mount", "sh", "-c", script, "sh", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", privileges}, argv...)
	cmd := exec.CommandContext(t.Context(), "unshare", line...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_STATE_HOME=" + home, "LC_ALL=C.UTF-8"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), "%s%s", &out, &errs)
	return out.String(), errs.String()
}

// TestUserNamespace checks that a user who cannot mount gets the view in a user namespace, and no namespace otherwise.
func TestUserNamespace(t *testing.T) {
	t.Parallel()
	nvmecr := demotest.Nvmecr(t)
	if os.Geteuid() != 0 {
		t.Skip("root makes hosts without fusermount3")
	}
	if err := exec.Command("unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "true").Run(); err != nil {
		t.Skipf("no user namespaces here: %v", err)
	}
	home := shortdir.New(t)
	require.NoError(t, os.Chown(home, nobody, nobody))
	if err := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", nvmecr, "version").Run(); err != nil {
		t.Skipf("other users cannot execute what is built here: %v", err)
	}
	mount := filepath.Join(home, "mount")
	require.NoError(t, os.Mkdir(mount, 0o755))
	image := filepath.Join(home, "image")
	require.NoError(t, os.WriteFile(image, nil, 0o666))
	require.NoError(t, errors.Join(os.Truncate(image, 64<<20), os.Chown(image, nobody, nobody)))
	script := `cd /; set -e; echo hi > $NVMECR_MOUNT/a; cp /bin/echo $NVMECR_MOUNT/echo; id -u; sed -n "s/CapPrm:\t//p" /proc/self/status
		readlink /proc/self/ns/user; if [ -n "$NVMECR_EXPORT" ]; then env -i cat $NVMECR_EXPORT/self/a; $NVMECR_MOUNT/echo ran; fi
		env -u LD_PRELOAD sh -c "echo kernel > $NVMECR_MOUNT/b" 2>/dev/null || true; cat $NVMECR_MOUNT/b 2>/dev/null || true; env | grep NAMESPACE || true`
	ours, err := os.Readlink("/proc/self/ns/user")
	require.NoError(t, err)
	const everywhere = "65534\n0000000000000000\nNS\n"
	for _, tt := range []struct {
		name       string
		fusermount bool
		privileges string
		flags      []string
		own        bool // in a user namespace
		want       string
		said       bool
	}{
		{"no fusermount3", false, "--bounding-set=+all", []string{"--size=64M"}, true, everywhere + "hi\nran\nkernel\n", true},
		{"no new privileges", true, "--no-new-privs", []string{"--size=64M"}, true, everywhere + "hi\nran\nkernel\n", false},
		{"without FUSE", false, "--no-new-privs", []string{"--size=64M", "--fuse=off"}, false, everywhere, false},
		{"of other hosts", false, "--no-new-privs", []string{"--target", "file:" + image}, false, everywhere, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run := append([]string{nvmecr, "run", "--name", strings.ReplaceAll(tt.name, " ", "-"), "--mount", mount}, tt.flags...)
			out, said := asNobody(t, home, tt.fusermount, tt.privileges, append(run, "--", "sh", "-c", script)...)
			lines := strings.Split(out, "\n")
			require.Greater(t, len(lines), 3, out)
			assert.Equal(t, tt.own, lines[2] != ours, lines[2])
			lines[2] = "NS"
			assert.Equal(t, tt.want, strings.Join(lines, "\n"))
			assert.Equal(t, tt.said, strings.Contains(said, "the job is in a user namespace"), said)
			names, err := os.ReadDir(mount)
			require.NoError(t, err)
			for _, n := range names {
				assert.Equal(t, "b", n.Name(), "nothing else went to the directory below")
				require.NoError(t, os.Remove(filepath.Join(mount, n.Name())))
			}
		})
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		return
	}
	out, _ := asNobody(t, home, true, "--bounding-set=+all", nvmecr, "run", "--fresh", "--size", "64M", "--mount", mount, "--", "sh", "-c", "readlink /proc/self/ns/user; echo ${NVMECR_EXPORT:+view}")
	assert.Equal(t, ours+"\nview\n", out)
}

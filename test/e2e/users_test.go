package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// otherUsers is a program whose children change their user before they use the mount: one before any process has used it; one of a
// process with an open file, which has written through its parent; and one that only has its output there.
const otherUsers = `
import errno, os, sys

def child(work, user=65534):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        work(True)
        os.setuid(user)
        work(False)
        os._exit(0)
    os.waitpid(pid, 0)

def attempt(what, call):
    try:
        call()
        print(what, "done")
    except OSError as e:
        print(what, errno.errorcode[e.errno])
    sys.stdout.flush()

def paths(before):
    if not before:
        attempt("stat", lambda: os.stat("/nvmecr"))
        attempt("open", lambda: open("/nvmecr/f", "w"))

child(paths)
f = os.open("/nvmecr/f", os.O_RDWR | os.O_CREAT, 0o666)

def inherited(before):
    if before:
        attempt("before", lambda: os.write(f, b"before "))
    else:
        attempt("write", lambda: os.write(f, b"after"))
        attempt("open", lambda: open("/nvmecr/g", "w"))

child(inherited)
os.write(f, b"parent")
print(os.pread(f, 100, 0).decode())
sys.stdout.flush()
os.system("setpriv --reuid 65534 sh -c 'echo output' > /nvmecr/log; cat /nvmecr/log")
`

// TestChildrenOfAnotherUser checks that these children can write to inherited descriptors, and that other calls are EACCES, with a
// message that says why.
func TestChildrenOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can change its user")
	}
	s := newStage(t)
	r := call(t, s, "run", "--name", "users", "--size", "64M", "--", "python3", "-c", otherUsers)
	assert.Equal(t, "stat EACCES\nopen EACCES\nbefore done\nwrite EACCES\nopen EACCES\nbefore parent\noutput\n", r.ok(t))
	assert.Equal(t, 1, strings.Count(r.stderr, "are for user 0 alone, whose run this is"), r.stderr)
	assert.Equal(t, 1, strings.Count(r.stderr, "cannot use files under /nvmecr that a process of another user has"), r.stderr)
}

package command

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"nvmecr/internal/store"
)

// A user whom neither root nor fusermount3 lets mount can do so in a user namespace. The mount is in the namespace alone, so the
// whole run has to be in it: the command executes itself there, before it has anything open. What a job loses by that are set-user-ID
// programs, and the names of other users' files (nobody). So it is for runs that would have no view otherwise,
// and for those of one host: ssh, by which launchers reach others, refuses configuration files that are nobody's.

// unshare is util-linux's command line. The namespace has the user by the same number, who has all capabilities in it, and keeps
// them when a program is executed.
var unshare = []string{"unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "--propagation", "slave", "--"}

// namespaceVariable says to the command that it has executed itself.
const namespaceVariable = "NVMECR_NAMESPACE"

// inNamespace says that this is the command in the namespace. The job is not told.
func inNamespace() bool {
	_, in := os.LookupEnv(namespaceVariable)
	_ = os.Unsetenv(namespaceVariable) // which cannot fail for a name like this
	return in
}

// enterNamespace executes this command in a namespace where the run has no view otherwise. It returns where that is not so, or
// there can be none. dir is not used after it has executed.
func (o *runOptions) enterNamespace(dir *store.StateDir) error {
	if o.namespace = inNamespace(); o.namespace {
		return nil
	}
	embedded := len(o.cfg.Targets) == 0
	if record, err := dir.Load(); err == nil {
		embedded = embedded && record.Embedded
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !embedded || !o.cfg.FUSE || mayMount() || hasFusermount() || !hasFUSE() {
		return nil
	}
	path, err := exec.LookPath(unshare[0])
	if err != nil || exec.Command(path, append(unshare[1:len(unshare):len(unshare)], "true")...).Run() != nil {
		return nil // without a view, then: --log=info says so
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if dir.Made {
		if err := dir.Remove(); err != nil { // it makes it once more
			return err
		}
	}
	if !noNewPrivileges() {
		sayNamespace(o.stderr)
	}
	argv := append(append(unshare[:len(unshare):len(unshare)], self), os.Args[1:]...)
	return fmt.Errorf("executing %s: %w", path, unix.Exec(path, argv, append(os.Environ(), namespaceVariable+"=1")))
}

func sayNamespace(stderr io.Writer) {
	fmt.Fprintln(stderr, "nvmecr: no fusermount3 here: the job is in a user namespace, where set-user-ID programs (sudo) fail, and perhaps ssh; --fuse=off does without")
}

// mayMount says that this process may mount, in its own namespace.
func mayMount() bool {
	_, data, err := capabilities()
	return err == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// capabilities returns those of the calling thread.
func capabilities() (*unix.CapUserHeader, *[2]unix.CapUserData, error) {
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	err := unix.Capget(&header, &data[0])
	return &header, &data, err
}

// hasFusermount says that there is a program by which users mount, and that it may have root's rights.
func hasFusermount() bool {
	for _, name := range []string{"fusermount3", "/bin/fusermount3", "fusermount", "/bin/fusermount"} {
		if _, err := exec.LookPath(name); err == nil {
			return !noNewPrivileges()
		}
	}
	return false
}

func noNewPrivileges() bool {
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return err == nil && set == 1
}

func hasFUSE() bool {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// dropCapabilities takes from what the calling thread starts the capabilities that the namespace has given this process: to
// them a file that its user may not write to would be open.
func dropCapabilities() error {
	header, data, err := capabilities()
	if err == nil {
		data[0].Inheritable, data[1].Inheritable = 0, 0 // nor are they ambient then
		err = unix.Capset(header, &data[0])
	}
	if err != nil {
		return fmt.Errorf("capabilities of the job: %w", err)
	}
	return nil
}

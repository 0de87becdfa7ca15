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

// A user without root and fusermount3 can mount in a user namespace. The mount is visible in that namespace only, so
// the whole run has to be in it: the command executes itself there before it opens anything. In a user namespace
// set-user-ID programs fail, and the owners of other users' files appear as nobody. ssh, by which launchers reach
// other hosts, then refuses its configuration files. So a namespace is used only for runs on one host that would have
// no view otherwise.

// unshare is the command line of util-linux's unshare(1). In the namespace the user has the same number and all
// capabilities, and keeps these when a program is executed.
var unshare = []string{"unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "--propagation", "slave", "--"}

// namespaceVariable marks a command that has executed itself in a namespace.
const namespaceVariable = "NVMECR_NAMESPACE"

// inNamespace reports whether this is the command in the namespace. It removes the variable, so that the job does not
// inherit it.
func inNamespace() bool {
	_, in := os.LookupEnv(namespaceVariable)
	_ = os.Unsetenv(namespaceVariable) // fails only for invalid names
	return in
}

// enterNamespace executes this command again in a user namespace if the run would have no view otherwise. It returns
// nil if no namespace is needed, or none can be created. When it executes, dir is removed if this command created it.
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
		return nil // the run has no view, which --log=info reports
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if dir.Made {
		if err := dir.Remove(); err != nil { // the executed command creates it again
			return err
		}
	}
	if !noNewPrivileges() {
		reportNamespace(o.stderr)
	}
	argv := append(append(unshare[:len(unshare):len(unshare)], self), os.Args[1:]...)
	return fmt.Errorf("executing %s: %w", path, unix.Exec(path, argv, append(os.Environ(), namespaceVariable+"=1")))
}

func reportNamespace(stderr io.Writer) {
	fmt.Fprintln(stderr, "nvmecr: no fusermount3 here: the job is in a user namespace, where set-user-ID programs (sudo) fail, and perhaps ssh; --fuse=off does without")
}

// mayMount reports whether this process may mount file systems in its namespace.
func mayMount() bool {
	_, data, err := capabilities()
	return err == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// capabilities returns the capabilities of the calling thread.
func capabilities() (*unix.CapUserHeader, *[2]unix.CapUserData, error) {
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	err := unix.Capget(&header, &data[0])
	return &header, &data, err
}

// hasFusermount reports whether a set-user-ID program can mount FUSE file systems for this user.
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

// dropCapabilities removes the capabilities of the namespace from the processes that the calling thread starts. With
// them the job could write to files regardless of their permissions.
func dropCapabilities() error {
	header, data, err := capabilities()
	if err == nil {
		data[0].Inheritable, data[1].Inheritable = 0, 0 // this clears the ambient set, too
		err = unix.Capset(header, &data[0])
	}
	if err != nil {
		return fmt.Errorf("capabilities of the job: %w", err)
	}
	return nil
}

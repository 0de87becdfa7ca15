package command

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
)

// embeddedStart is how long the embedded target may take to listen, embeddedEnd how long to end, as with serveStart.
const (
	embeddedStart = 2 * time.Minute
	embeddedEnd   = time.Minute
)

// An embedded target is `nvmecr target` as a process of its own, on a loopback
// port that the kernel chose.
type embedded struct {
	id       nvmf.TransportID
	cmd      *exec.Cmd
	lifeline *os.File // it ends when this closes, also by our death
}

// makeRunKey gives the run a key of its own, by which its processes prove to the
// embedded target that they are the job's: whoever else is on this host, and says the
// host's NQN, cannot. It is in the state directory, which is the user's alone. Where
// the user has given a key it is that one.
func makeRunKey(cfg *config.Config, dir *store.StateDir) (remove func(), err error) {
	if cfg.Secret != "" {
		return func() {}, nil
	}
	if cfg.Secret, err = dir.WriteKey(dhchap.NewSecret(dhchap.SHA256).Reveal()); err != nil {
		return nil, fmt.Errorf("the key of this run: %w", err)
	}
	return func() { _ = os.Remove(cfg.Secret) }, nil // of no use any more
}

// embeddedKeys returns what the embedded target needs to authenticate this
// configuration. It is a file without a name, so that nothing of it stays if we are
// killed.
func embeddedKeys(cfg *config.Config) (*os.File, error) {
	keys, err := cfg.Secrets()
	if err != nil {
		return nil, err
	}
	line := cfg.Host() + " " + keys.Host.Reveal()
	if !keys.Controller.IsZero() {
		line += " " + keys.Controller.Reveal()
	}
	fd, err := unix.MemfdCreate("nvmecr-keys", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot hand the keys to the embedded target: %w", err)
	}
	f := os.NewFile(uintptr(fd), "keys")
	_, err = fmt.Fprintln(f, line)
	if err = errors.Join(err, f.Chmod(0o600)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// startEmbedded serves the image of dir, to this configuration's host NQN
// alone, which has to authenticate. The target holds the
// lock of dir as long as it lives. Its subsystem NQN is new each time:
// processes of a run that is gone are refused even if they find a new target
// on their old port.
func startEmbedded(cfg *config.Config, dir *store.StateDir, lock *store.DirLock) (*embedded, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	keys, err := embeddedKeys(cfg)
	if err != nil {
		return nil, err
	}
	defer keys.Close()
	const keyFile = "/proc/self/fd/4" // the first is 3
	stdin, lifeline, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	stdout, listening, err := os.Pipe()
	if err != nil {
		lifeline.Close()
		return nil, err
	}
	defer stdout.Close()

	nqn := "nqn.2014-08.org.nvmexpress:uuid:" + uuid.NewString()
	var complaint bytes.Buffer
	// Every flag is given: the environment is meant for others.
	cmd := exec.Command(self, "target", "--until-eof",
		"--listen", "127.0.0.1:0", "--nqn", nqn, "--allow-host", cfg.Host(), "--allow-any-host=false",
		"--dhchap-keys", keyFile, "--dhchap-digests=", "--dhchap-dhgroups=null", "--tls-keys=",
		"--namespace", "file:"+dir.Image(), "--admin=", "--pool=", "--verbose=false")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, listening, &complaint
	cmd.ExtraFiles = []*os.File{lock.File, keys}
	// A session of its own: what is typed at the terminal ends the job, and
	// the job may still write when it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	listening.Close()
	if err != nil {
		lifeline.Close()
		return nil, fmt.Errorf("cannot start the embedded target: %w", err)
	}
	t := &embedded{cmd: cmd, lifeline: lifeline}
	if t.id, err = awaitListening(stdout); err != nil {
		t.stop(io.Discard)
		if said := strings.TrimSpace(complaint.String()); said != "" {
			return nil, fmt.Errorf("the embedded target did not start: %s", said)
		}
		return nil, fmt.Errorf("the embedded target did not start: %w", err)
	}
	return t, nil
}

// awaitListening reads the line by which a target says that it listens.
func awaitListening(stdout *os.File) (nvmf.TransportID, error) {
	if err := stdout.SetReadDeadline(time.Now().Add(embeddedStart)); err != nil {
		return nvmf.TransportID{}, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err == io.EOF {
		return nvmf.TransportID{}, fmt.Errorf("it ended at once")
	}
	if err != nil {
		return nvmf.TransportID{}, err
	}
	return nvmf.ParseTransportID(line)
}

// stop ends the target and waits until everything is in its file. One that does
// not end is killed: what it acknowledged is in the page cache.
func (t *embedded) stop(stderr io.Writer) {
	t.lifeline.Close()
	// It may be stopped (SIGSTOP).
	_ = t.cmd.Process.Signal(syscall.SIGCONT)
	kill := time.AfterFunc(embeddedEnd, func() {
		fmt.Fprintf(stderr, "nvmecr: the embedded target did not end within %s and is killed\n", embeddedEnd)
		_ = t.cmd.Process.Kill()
	})
	defer kill.Stop()
	// Its exit status no longer matters.
	_ = t.cmd.Wait()
}

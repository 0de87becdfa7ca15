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

// Limits for the start and the end of the embedded target. They are for one that hangs, and longer than a busy host
// needs.
const (
	embeddedStart = 2 * time.Minute
	embeddedEnd   = time.Minute
)

// An embedded target is a child process `nvmecr target` on a loopback port that the kernel chose.
type embedded struct {
	id       nvmf.TransportID
	cmd      *exec.Cmd
	lifeline *os.File // the target ends when this closes, also if this process dies
}

// makeRunKey generates a DH-HMAC-CHAP key by which processes of the run authenticate to the embedded target. Other
// users of this host can claim the same host NQN, but cannot read the key, which is in the user's state directory. A
// key that the user has configured is used instead.
func makeRunKey(cfg *config.Config, dir *store.StateDir) (remove func(), err error) {
	if cfg.Secret != "" {
		return func() {}, nil
	}
	if cfg.Secret, err = dir.WriteKey(dhchap.NewSecret(dhchap.SHA256).Reveal()); err != nil {
		return nil, fmt.Errorf("the key of this run: %w", err)
	}
	return func() { _ = os.Remove(cfg.Secret) }, nil // the next run makes a new key
}

// embeddedKeys returns the key file of the embedded target. It is an anonymous memory file, so that nothing of it is
// left if this process is killed.
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

// startEmbedded serves the image of dir to the host NQN of the configuration alone, which has to authenticate. The
// target holds the lock of dir until it ends. Its subsystem NQN is new for each run: processes of an earlier run are
// refused even if they reach a new target on the old port.
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
	const keyFile = "/proc/self/fd/4" // ExtraFiles begin at 3
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
	// All flags are given, since variables of the environment are meant for other targets.
	cmd := exec.Command(self, "target", "--until-eof",
		"--listen", "127.0.0.1:0", "--nqn", nqn, "--allow-host", cfg.Host(), "--allow-any-host=false",
		"--dhchap-keys", keyFile, "--dhchap-digests=", "--dhchap-dhgroups=null", "--tls-keys=",
		"--namespace", "file:"+dir.Image(), "--admin=", "--pool=", "--verbose=false")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, listening, &complaint
	cmd.ExtraFiles = []*os.File{lock.File, keys}
	// A new session: signals of the terminal end the job, which may still write while it ends.
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

// awaitListening reads the line that a target prints when it listens.
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

// stop ends the target and waits until all data is in its file. A target that does not end in time is killed, which
// loses nothing: acknowledged data is in the page cache.
func (t *embedded) stop(stderr io.Writer) {
	t.lifeline.Close()
	// A stopped process (SIGSTOP) would not notice the end of input.
	_ = t.cmd.Process.Signal(syscall.SIGCONT)
	kill := time.AfterFunc(embeddedEnd, func() {
		fmt.Fprintf(stderr, "nvmecr: the embedded target did not end within %s and is killed\n", embeddedEnd)
		_ = t.cmd.Process.Kill()
	})
	defer kill.Stop()
	// Its exit status no longer matters.
	_ = t.cmd.Wait()
}

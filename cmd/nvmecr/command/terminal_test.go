package command

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// terminal creates a pseudoterminal; data written to keyboard is its input.
func terminal(t *testing.T) (keyboard, screen *os.File) {
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { keyboard.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	return keyboard, screen
}

// TestInterruptAtATerminal types Ctrl-C in the foreground: the job gets the signal from the terminal, and not a second time from nvmecr.
// The second Ctrl-C kills.
func TestInterruptAtATerminal(t *testing.T) {
	keyboard, screen := terminal(t)
	cmd := nvmecr("job", "sh", "-c", `trap 'echo got' INT; echo up; while :; do sleep 0.01; done`)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = screen, screen, screen
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, screen.Close())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	out := bufio.NewReader(keyboard)

	require.Equal(t, "up", line(t, out))
	_, err := keyboard.Write([]byte{3})
	require.NoError(t, err)
	assert.Equal(t, "got", strings.TrimLeft(line(t, out), "^C"))
	// A second signal that is delivered before the first was handled merges with it: type until the process ends.
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for err = nil; err == nil; {
		_, werr := keyboard.Write([]byte{3})
		require.NoError(t, werr)
		select {
		case err = <-ended:
		case <-time.After(20 * time.Millisecond):
		}
	}
	assert.ErrorAs(t, err, new(*exec.ExitError))
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() { // killed by a third signal at the end
		assert.Equal(t, 128+9, cmd.ProcessState.ExitCode())
	}

	// The output may repeat until the terminal hangs up.
	for {
		text, err := out.ReadString('\n')
		if err != nil {
			break
		}
		assert.Contains(t, []string{"got", ""}, strings.TrimLeft(strings.TrimSpace(text), "^C"))
	}
}

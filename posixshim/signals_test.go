//go:build !race

package posixshim_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSignals runs a program that uses the mount and receives signals.
func TestSignals(t *testing.T) {
	s := newStore(t)
	assert.Equal(t, "ok\n", output(t, s.command(compile(t, "gcc", "signals.c"), mount)))
}

// TestFaultHandlers checks that handlers of fault signals get the same arguments as without the library. A bad buffer
// must be EFAULT with any handler.
func TestFaultHandlers(t *testing.T) {
	program := compile(t, "gcc", "actions.c", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-pthread")
	for _, when := range []string{"before", "after", "both"} {
		want := output(t, exec.Command(program, when, t.TempDir()))
		assert.Empty(t, diff(t, want, output(t, newStore(t).command(program, when, mount))), when)
		assert.Contains(t, want, "SEGV 2\n  signal 11, sent 0, there 1")
	}
	// Each string is a signal, its action (default, ignored, or handled once), and its origin (a fault or a sender).
	for _, how := range []string{"0df", "0dr", "1df", "1dr", "2df", "2dr", "0if", "0ir", "1ir", "2if", "0of", "0or", "2of"} {
		want, _, whether := finish(t, exec.Command(program, "e"+how, t.TempDir()))
		got, stderr, ended := finish(t, newStore(t).command(program, "e"+how, mount))
		assert.Equal(t, want, got, how)
		assert.Equal(t, fmt.Sprint(whether), fmt.Sprint(ended), how)
		assert.Empty(t, stderr, how)
	}
}

// TestSignalQueues checks that signals which are blocked during a call arrive after the call in the same order, and
// that none is lost.
func TestSignalQueues(t *testing.T) {
	program := compile(t, "gcc", "queues.c", "-pthread")
	want := output(t, exec.Command(program, t.TempDir()))
	assert.Empty(t, diff(t, want, output(t, newStore(t).command(program, mount))))
	assert.Contains(t, want, "4000 signals, 0 disordered, 0 calls failed\nignored 1\n")
}

// TestFrames checks that handlers run on the stack on which the program expects them. Garbage collectors and
// schedulers of coroutines depend on that.
func TestFrames(t *testing.T) {
	program := compile(t, "gcc", "frames.c", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-pthread", "-lm")
	want := output(t, exec.Command(program, t.TempDir()))
	require.Contains(t, want, "main is behind the handler: 1\n")
	for range 3 {
		assert.Empty(t, diff(t, want, output(t, newStore(t).command(program, mount))))
	}
	// The same in a process that has a server.
	shell := "exec 3> $0/held; " + program + " $0; :"
	assert.Empty(t, diff(t, want, output(t, newStore(t).command("bash", "-c", shell, mount))))
}

// TestHandlersAmongCalls checks that a handler whose signal arrives during a call runs when the call has returned.
func TestHandlersAmongCalls(t *testing.T) {
	program := compile(t, "gcc", "jumps.c", "-pthread")
	for _, args := range [][]string{nil, {"jump"}} {
		want := output(t, exec.Command(program, append([]string{t.TempDir()}, args...)...))
		require.Equal(t, "0 failed\n", want)
		assert.Equal(t, want, output(t, newStore(t).command(program, append([]string{mount}, args...)...)), args)
		// The same in a process that has a server.
		shell := "exec 3> $0/held; " + program + " $0 " + strings.Join(args, " ") + "; :"
		assert.Equal(t, want, output(t, newStore(t).command("bash", "-c", shell, mount)), args)
	}
}

// TestCheckpointInHandler writes a checkpoint in a signal handler, as programs do when the time of their job is over.
func TestCheckpointInHandler(t *testing.T) {
	program := compile(t, "gcc", "handler.c")
	want := output(t, exec.Command(program, t.TempDir()))
	assert.Empty(t, diff(t, want, output(t, newStore(t).command(program, mount))))
	assert.Contains(t, want, "-- thread\nfd >= 0 = 1\n")
}

// TestIgnoredSignals checks that ignored signals stay ignored in an executed program.
func TestIgnoredSignals(t *testing.T) {
	program := compile(t, "gcc", "ignored.c")
	want := "not executed: 1 1 1 1 1 1 1 1\n" +
		strings.Repeat("spawned: 1 1 1 1\n", 4) +
		"executed: 1 1 1 1 1\n"
	require.Equal(t, want, output(t, exec.Command(program, t.TempDir()+"/f")), "without the library")
	assert.Equal(t, want, output(t, newStore(t).command(program, mount+"/f")))
}

// TestExitInHandler checks that all data is written if a signal handler ends the process.
func TestExitInHandler(t *testing.T) {
	program := compile(t, "gcc", "exits.c")
	for _, how := range []string{"main", "thread"} {
		require.Equal(t, "buffered, at the end", output(t, exec.Command("sh", "-c", program+" $0/f "+how+" && exec cat $0/f", t.TempDir())))
		assert.Equal(t, "buffered, at the end", output(t, newStore(t).command("sh", "-c", program+" $0/f "+how+" && exec cat $0/f", mount)), how)
	}
}

// TestSignalMasks runs programs that wait for a signal which all their threads block.
func TestSignalMasks(t *testing.T) {
	program := compile(t, "gcc", "masks.c")
	require.Equal(t, "ok\n", output(t, exec.Command(program, t.TempDir())), "without the library")
	assert.Equal(t, "ok\n", output(t, newStore(t).command(program, mount)))
}

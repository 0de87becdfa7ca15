package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
)

// target is a process of `nvmecr target`.
type target struct {
	ids      []nvmf.TransportID // of its namespaces
	cmd      *exec.Cmd
	lifeline *os.File // the target ends when this is closed, even if this process dies
}

// targetStart is the time limit for a target to listen, and targetEnd that for its end.
const (
	targetStart = 20 * time.Second
	targetEnd   = 15 * time.Second
)

// targetNQN is the NQN of the subsystem, unless a kernel's host has to distinguish it from others.
const targetNQN = "nqn.2014-08.org.nvmecr:bench"

// startTarget starts a target with the given namespaces.
func (e *Env) startTarget(ctx context.Context, namespaces ...string) (*target, error) {
	return e.startTargetAs(ctx, targetNQN, namespaces...)
}

// startTargetAs is like startTarget, for a subsystem with another NQN.
func (e *Env) startTargetAs(ctx context.Context, nqn string, namespaces ...string) (*target, error) {
	stdin, lifeline, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	listen := "127.0.0.1:0"
	if e.remote() {
		listen = "0.0.0.0:0"
	}
	argv := []string{"target", "--until-eof", "--verbose=false", "--listen", listen, "--nqn", nqn}
	if e.remote() { // NVMe hosts on other machines have other NQNs; the data may be overwritten
		argv = append(argv, "--allow-any-host")
	}
	for _, n := range namespaces {
		argv = append(argv, "--namespace", n)
	}
	var complaint bytes.Buffer
	t := &target{cmd: exec.Command(e.Nvmecr, argv...), lifeline: lifeline}
	t.cmd.Env, t.cmd.Stdin, t.cmd.Stderr = base(), stdin, &complaint
	// Signals of the terminal go to this process only, which ends the target last.
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := t.cmd.StdoutPipe()
	if err == nil {
		err = t.cmd.Start()
	}
	if err != nil {
		lifeline.Close()
		return nil, fmt.Errorf("cannot start a target: %w", err)
	}
	if err := t.await(stdout, len(namespaces)); err != nil {
		t.Close()
		if said := strings.TrimPrefix(lastLine(complaint.Bytes()), "nvmecr: "); said != "" {
			err = errors.New(said)
		}
		return nil, fmt.Errorf("the target did not start: %w", err)
	}
	return t, nil
}

// await reads the lines by which a target reports that it listens: one for each
// namespace at each address. The first address is used.
func (t *target) await(stdout io.Reader, namespaces int) error {
	late := time.AfterFunc(targetStart, func() { _ = t.cmd.Process.Kill() })
	defer late.Stop()
	lines := bufio.NewScanner(stdout)
	for len(t.ids) < namespaces {
		if !lines.Scan() {
			return errors.Join(lines.Err(), errors.New("it ended before it listened"))
		}
		id, err := nvmf.ParseTransportID(lines.Text())
		if err != nil {
			return err
		}
		t.ids = append(t.ids, id)
	}
	return nil
}

// Close ends the target.
func (t *target) Close() error {
	t.lifeline.Close()
	kill := time.AfterFunc(targetEnd, func() { _ = t.cmd.Process.Kill() })
	defer kill.Stop()
	_ = t.cmd.Wait() // the exit status is irrelevant
	return nil
}

// touch writes a whole namespace once. The first write to memory costs page faults, and
// more than that in a virtual machine.
func touch(ctx context.Context, id nvmf.TransportID) error {
	dev, err := dial.Open(ctx, id, dial.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()
	q, err := newRawQueue(ctx, dev, 0, 1)
	if err != nil {
		return err
	}
	defer q.queue.Close()
	b, err := q.batch(nvmf.MiB)
	if err != nil {
		return err
	}
	for at := nvmf.LBA(0); at+b.blocks <= q.count && ctx.Err() == nil; at += b.blocks {
		if err := q.move(nvmf.Write, b, q.first+at); err != nil {
			return err
		}
	}
	return ctx.Err()
}

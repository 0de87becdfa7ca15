package workers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/store"
)

// A Work executes a command that a rank in Go has prepared. It returns the measurements
// by name, except for begin and end.
type Work func() (map[string]int64, error)

// Serve connects to the coordinator at one of the addresses and executes its commands
// until it says quit. prepare does all work that is not to be timed.
func Serve(ctx context.Context, addresses string, prepare func(command string) (Work, error)) error {
	conn, err := connect(ctx, addresses)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := hello(conn); err != nil {
		return err
	}
	lines := bufio.NewReader(conn)
	for {
		command, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) || command == "quit\n" {
			return nil
		}
		if err == nil {
			err = serveOne(conn, lines, strings.TrimSuffix(command, "\n"), prepare)
		}
		if err != nil {
			return err
		}
	}
}

func connect(ctx context.Context, addresses string) (net.Conn, error) {
	var errs []error
	for _, a := range strings.Split(addresses, ",") {
		d := net.Dialer{Timeout: 5 * time.Second}
		conn, err := d.DialContext(ctx, "tcp", a)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no coordinator of a benchmark answers: %w", errors.Join(errs...))
}

func hello(w io.Writer) error {
	place, err := store.ProcFromEnv(os.Getenv)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		boot = []byte("?")
	}
	secret := os.Getenv(secretVariable)
	if secret == "" {
		secret = "-"
	}
	_, err = fmt.Fprintf(w, "hello %s %d %d %s %s %d\n", secret, place.Rank, place.Size, host, bytes.TrimSpace(boot), os.Getpid())
	return err
}

func serveOne(w io.Writer, lines *bufio.Reader, command string, prepare func(string) (Work, error)) error {
	work, err := prepare(command)
	if err != nil {
		return sayFailed(w, err)
	}
	if _, err := io.WriteString(w, "ready\n"); err != nil {
		return err
	}
	if word, err := lines.ReadString('\n'); err != nil || word != "go\n" {
		return err
	}
	begin := Now()
	took, err := work()
	end := Now()
	if err != nil {
		return sayFailed(w, err)
	}
	var line bytes.Buffer
	fmt.Fprintf(&line, "done begin=%d end=%d", begin, end)
	for name, n := range took {
		fmt.Fprintf(&line, " %s=%d", name, n)
	}
	line.WriteByte('\n')
	_, err = w.Write(line.Bytes())
	return err
}

func sayFailed(w io.Writer, err error) error {
	_, e := fmt.Fprintf(w, "failed %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	return e
}

// Now returns the nanoseconds of CLOCK_MONOTONIC.
func Now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it cannot fail
	return t.Nano()
}

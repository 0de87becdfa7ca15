package target_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

// childVariable makes this test binary a target. Tests that kill a target run the test
// binary as a child process.
const childVariable = "NVMECR_TEST_TARGET" // backing: "file:PATH" or "mem:BYTES"

func TestMain(m *testing.M) {
	if what := os.Getenv(childVariable); what != "" {
		if err := runChild(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runChild serves one namespace until standard input ends.
func runChild(what string) error {
	var b target.Backing
	var err error
	if path, ok := strings.CutPrefix(what, "file:"); ok {
		b, err = target.OpenFile(path, 4096)
	} else {
		size, _ := strconv.Atoi(strings.TrimPrefix(what, "mem:"))
		b, err = target.NewMemory(nvmf.Bytes(size), 4096)
	}
	if err != nil {
		return err
	}
	c := one(b)
	c.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	t, err := target.New(c)
	if err != nil {
		return err
	}
	addr, err := t.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(addr)
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	return t.Close(context.Background())
}

// child starts a target in a process of its own.
func child(t testing.TB, what string) (*exec.Cmd, net.Addr) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+what)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err, "the target process did not start")
	addr, err := net.ResolveTCPAddr("tcp", strings.TrimSpace(line))
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return cmd, addr
}

func open(t testing.TB, addr net.Addr, o tcp.Options) (nvmf.Device, nvmf.Queue) {
	d, err := tcp.Open(context.Background(), id(t, addr, 1), o)
	require.NoError(t, err)
	q, err := d.OpenQueue(context.Background(), 32)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, q.Close())
		assert.NoError(t, d.Close())
	})
	return d, q
}

// BenchmarkTarget measures writes and reads of an application, split into commands of up
// to 128 KiB that are in flight at the same time.
func BenchmarkTarget(b *testing.B) {
	for _, o := range []struct {
		name    string
		options tcp.Options
	}{{"plain", tcp.Options{}}, {"digest", tcp.Options{HeaderDigest: true, DataDigest: true}}} {
		for _, op := range []nvmf.Opcode{nvmf.Write, nvmf.Read} {
			for _, size := range []int{1 << 20, 32 << 10, 4 << 10} {
				b.Run(fmt.Sprintf("%s/%s/%dKiB", o.name, op, size>>10), func(b *testing.B) {
					const area = 256 << 20
					_, addr := child(b, backingOf(b, area))
					_, q := open(b, addr, o.options)
					data := make([]byte, size)
					var cmds []*nvmf.Command
					for at := 0; at < size; at += 128 << 10 {
						n := min(size, 128<<10)
						cmds = append(cmds, &nvmf.Command{Opcode: op, Blocks: nvmf.LBA(n / 4096), Data: [][]byte{data[at : at+n]}})
					}
					b.SetBytes(int64(size))
					var lba nvmf.LBA
					next := func() {
						for _, c := range cmds {
							c.LBA = lba
							if lba += c.Blocks; lba >= area/4096 {
								lba = 0
							}
						}
						q.Submit(cmds)
						require.NoError(b, q.Wait(cmds))
					}
					for range area / size { // allocates the pages
						next()
					}
					for b.Loop() {
						next()
					}
				})
			}
		}
	}
}

// backingOf returns the backing of the child: the file that NVMECR_BENCH_FILE names, or memory.
func backingOf(b *testing.B, size int64) string {
	path := os.Getenv("NVMECR_BENCH_FILE")
	if path == "" {
		return fmt.Sprintf("mem:%d", size)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(b, err)
	require.NoError(b, f.Truncate(size))
	require.NoError(b, f.Close())
	return "file:" + path
}

// BenchmarkRanks measures four queues at the same time, each of which writes 1 MiB at a time.
func BenchmarkRanks(b *testing.B) {
	for _, op := range []nvmf.Opcode{nvmf.Write, nvmf.Read} {
		b.Run(op.String(), func(b *testing.B) {
			const area, ranks, size = 256 << 20, 4, 1 << 20
			_, addr := child(b, backingOf(b, area))
			var queues [ranks]nvmf.Queue
			for i := range queues {
				_, queues[i] = open(b, addr, tcp.Options{})
			}
			b.SetBytes(size)
			b.ResetTimer()
			var group sync.WaitGroup
			for r, q := range queues {
				group.Go(func() {
					data := make([]byte, size)
					var cmds []*nvmf.Command
					for at := 0; at < size; at += 128 << 10 {
						cmds = append(cmds, &nvmf.Command{Opcode: op, Blocks: 32, Data: [][]byte{data[at : at+128<<10]}})
					}
					for i := r; i < b.N; i += ranks {
						for k, c := range cmds {
							c.LBA = nvmf.LBA(i%(area/size)*256 + k*32)
						}
						q.Submit(cmds)
						assert.NoError(b, q.Wait(cmds))
					}
				})
			}
			group.Wait()
		})
	}
}

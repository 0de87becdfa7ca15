package tcp_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

const (
	targetNQN = "nqn.2014-08.org.example:tcp-test"
	// serveEnv makes this test program a target, with memory of the size that the variable names.
	serveEnv = "NVMECR_TCP_TEST_SERVE"
)

func TestMain(m *testing.M) {
	if s := os.Getenv(serveEnv); s != "" {
		if err := serveStdio(s); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveStdio runs in the child process. It prints the address of a target, and serves
// until its standard input ends.
func serveStdio(size string) error {
	n, err := nvmf.ParseSize(size)
	if err != nil {
		return err
	}
	b, err := target.NewMemory(n, 4096)
	if err != nil {
		return err
	}
	t, err := target.New(target.Config{Subsystems: []target.Subsystem{{
		NQN: targetNQN, Namespaces: []target.Namespace{{NSID: 1, Backing: b}},
	}}})
	if err != nil {
		return err
	}
	addr, err := t.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(addr)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startTarget starts a target in a process of its own.
func startTarget(tb testing.TB) nvmf.TransportID {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"=1G")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(tb, err)
	out, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	require.NoError(tb, cmd.Start())
	tb.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(tb, err)
	return addressID(tb, line[:len(line)-1])
}

// BenchmarkQueue measures nvmecr's target, and the targets of SPDK and Linux that
// NVMECR_TEST_SPDK and NVMECR_TEST_LINUX name. It overwrites their namespaces.
func BenchmarkQueue(b *testing.B) {
	ids := map[string]nvmf.TransportID{"go": startTarget(b)}
	for _, p := range []struct{ name, env string }{{"SPDK", "NVMECR_TEST_SPDK"}, {"Linux", "NVMECR_TEST_LINUX"}} {
		if s := os.Getenv(p.env); s != "" {
			id, err := nvmf.ParseTransportID(s)
			require.NoError(b, err)
			ids[p.name] = id
		}
	}
	for name, id := range ids {
		for _, digests := range []bool{false, true} {
			o := tcp.Options{HeaderDigest: digests, DataDigest: digests}
			suffix := ""
			if digests {
				suffix = "-digests"
			}
			b.Run(name+suffix, func(b *testing.B) { benchmarkDevice(b, id, o) })
		}
	}
}

func benchmarkDevice(b *testing.B, id nvmf.TransportID, o tcp.Options) {
	ctx := context.Background()
	d, err := tcp.Open(ctx, id, o)
	require.NoError(b, err)
	defer d.Close()
	for _, c := range []struct {
		name     string
		op       nvmf.Opcode
		commands int
		size     nvmf.Bytes
	}{
		{"write-1MiB", nvmf.Write, 8, 128 * nvmf.KiB},
		{"write-32KiB", nvmf.Write, 1, 32 * nvmf.KiB},
		{"write-4KiB", nvmf.Write, 1, 4 * nvmf.KiB},
		{"read-1MiB", nvmf.Read, 8, 128 * nvmf.KiB},
		{"read-32KiB", nvmf.Read, 1, 32 * nvmf.KiB},
		{"read-4KiB", nvmf.Read, 1, 4 * nvmf.KiB},
	} {
		b.Run(c.name, func(b *testing.B) {
			q, err := d.OpenQueue(ctx, 32)
			require.NoError(b, err)
			defer q.Close()
			benchmarkOp(b, q, d.Identity(), c.op, c.commands, c.size)
		})
	}
}

// benchmarkOp issues batches of commands one after another, going through the
// first quarter of the namespace.
func benchmarkOp(b *testing.B, q nvmf.Queue, id *nvmf.Identity, op nvmf.Opcode, commands int, size nvmf.Bytes) {
	data := make([]byte, nvmf.Bytes(commands)*size)
	cmds := make([]*nvmf.Command, commands)
	for i := range cmds {
		cmds[i] = &nvmf.Command{Opcode: op, Blocks: nvmf.LBA(size / id.LBASize),
			Data: [][]byte{data[nvmf.Bytes(i)*size : nvmf.Bytes(i+1)*size]}}
	}
	area := id.Blocks / 4
	var at nvmf.LBA
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		for _, c := range cmds {
			c.LBA = at
			if at += c.Blocks; at+c.Blocks > area {
				at = 0
			}
		}
		q.Submit(cmds)
		if err := q.Wait(cmds); err != nil {
			b.Fatal(err)
		}
	}
}

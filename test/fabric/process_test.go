package fabric

import (
	"bufio"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo/demotest"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/tcp"
)

// process is a running `nvmecr target`.
type process struct {
	*exec.Cmd
	id nvmf.TransportID
}

func startTarget(t *testing.T, listen, namespace string) *process {
	p := &process{Cmd: exec.Command(demotest.Nvmecr(t), "target", "--listen", listen, "--namespace", namespace)}
	p.Stderr = os.Stderr
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "the target ended at once")
	p.id, err = nvmf.ParseTransportID(line)
	require.NoError(t, err)
	return p
}

func (p *process) kill(t *testing.T) {
	assert.NoError(t, p.Process.Kill())
	_ = p.Wait() // killed
}

// TestTargetProcess kills a target with a file at random times, and starts it again on the same port; and stops it for longer than the
// time-out of commands. The application only pauses.
func TestTargetProcess(t *testing.T) {
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	if *all {
		rounds = 40
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	namespace := "file:" + filepath.Join(t.TempDir(), "image") + "?size=64M"
	p := startTarget(t, "127.0.0.4:0", namespace) // an address at which no other process takes the port
	id := p.id
	listen := net.JoinHostPort(id.Address, id.Service)

	open := func(silent time.Duration) *tcp.Device {
		d, err := tcp.Open(t.Context(), id, tcp.Options{CommandTimeout: silent, KeepAlive: -1})
		require.NoError(t, err)
		return d
	}
	dev := open(patience) // a disk may be slow
	segment := microfs.Segment{Start: nvmf.MiB, Length: 40 * nvmf.MiB}
	require.NoError(t, microfs.Format(t.Context(), dev, segment, microfs.FormatOptions{LogPages: 1024}))
	require.NoError(t, dev.Close())
	dev = open(commandTimeout)
	fs, err := microfs.Mount(t.Context(), dev, segment, microfs.Options{Timeout: time.Minute})
	require.NoError(t, err)

	w, quit, gone := newWork(fs), make(chan bool), make(chan bool)
	var kills atomic.Int32
	stops := 0
	go func() {
		defer close(gone)
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Duration(random.IntN(60)) * time.Millisecond):
			}
			if kills.Load() > 0 && random.IntN(4) == 0 {
				_ = p.Process.Signal(syscall.SIGSTOP)
				time.Sleep(commandTimeout + 100*time.Millisecond)
				_ = p.Process.Signal(syscall.SIGCONT)
				stops++
				continue
			}
			p.kill(t)
			p = startTarget(t, listen, namespace)
			kills.Add(1)
		}
	}()
	stop := sync.OnceFunc(func() { close(quit); <-gone })
	defer stop()
	for round := 0; round < rounds || kills.Load() == 0; round++ {
		steps := workload()
		if round > 0 {
			// A state area that was affected twice must wait (oplog.Quarantine).
			steps = slices.DeleteFunc(steps, func(s step) bool { return s.name == "checkpoint" })
			w.run(t, "again", []step{unlink("big"), unlink("d/small"), unlink("last"), rmdir("d")})
		}
		w.run(t, "killed now and then", append(steps, closing("last")))
		w.match(t, fs, "killed now and then")
	}
	stop()
	require.NoError(t, dev.Close())
	_ = fs.Unmount() // the device is gone
	dev = open(patience)
	fs, err = microfs.Mount(t.Context(), dev, segment, microfs.Options{})
	require.NoError(t, err)
	w.match(t, fs, "mounted again")
	require.NoError(t, fs.Unmount())
	require.NoError(t, dev.Close())
	p.kill(t)
	t.Logf("killed %d times, stopped %d times", kills.Load(), stops)
}

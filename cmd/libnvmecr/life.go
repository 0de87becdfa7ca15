package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/ownfd"
	"nvmecr/internal/processfs"
	"nvmecr/internal/store"
	"nvmecr/mpiwrap"
	"nvmecr/nvmf/dial"
	"nvmecr/posixshim"
)

// Limits of what the runtime uses in the application's process.
const (
	// maxProcs is GOMAXPROCS. It is not lower on a machine with fewer cores: a thread in a system call keeps its P until Go's
	// monitor thread takes it away, and other threads of the application must not wait for that.
	maxProcs  = 4
	gcPercent = 50 // the heap is small and seldom grows
)

// opening has what this process needs to open its partition.
var opening struct {
	processfs.Opener
	getenv func(string) string

	mu   sync.Mutex
	proc *store.Proc // nil: not known yet; guarded by mu

	joint atomic.Pointer[joint] // set while MPI_Init opens the partition
}

// start prepares the runtime. It opens no partition: the process may only look for a path that does not exist, or be about to call
// MPI_Init. The runtime calls own for its descriptors.
func start(mount string, variables []byte, own unsafe.Pointer) error {
	ownfd.Keep(ownfd.Keeper{
		Hold: func(fd int) int { return callOwn(own, fd, ownOpened) },
		Stay: func(fd int) { callOwn(own, fd, ownKeepNumber) },
		Drop: func(fd int) { callOwn(own, fd, ownClosing) },
		Aside: func(open func()) {
			callOwn(own, 0, ownReserve)
			defer callOwn(own, 0, ownUnreserve)
			open()
		},
	})
	holdPoller()
	runtime.GOMAXPROCS(maxProcs)
	debug.SetGCPercent(gcPercent)
	process = posixshim.New(opening.Open, complain)
	opening.Process, opening.Proc, opening.Logf, opening.Formatted = process, whichRank, complain, formatted
	process.Ending = dial.Retire
	process.Identify = store.Cred
	process.Successor = successor
	if err := process.Credentials(); err != nil {
		return err
	}
	opening.getenv = posixshim.Environment(string(variables))
	leaveCore(opening.getenv)
	cfg, err := config.FromEnv(opening.getenv)
	if err != nil {
		complain("files under %s cannot be used: %v; start the program with nvmecr run", mount, err)
		return unix.EINVAL
	}
	opening.Config = cfg
	if err := opening.Mount(); err != nil {
		return err
	}
	process.View = view
	processfs.AwaitRelays(process, cfg)
	process.Used = func() { owner.Use(store.LockGroup(cfg.Run)) }
	process.Referrer = func() uint64 { return owner.HostNumber(store.LockGroup(cfg.Run)) }
	process.Forks = func() { attachToServer(cfg, true) }
	attachToServer(cfg, false)
	return nil
}

// complain writes one line on stderr.
func complain(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	who := "nvmecr: "
	if opening.mu.TryLock() {
		if p := opening.proc; p != nil && p.Size > 1 {
			who = fmt.Sprintf("nvmecr: rank %d: ", p.Rank)
		}
		opening.mu.Unlock()
	}
	line := []byte(who + text + "\n")
	_, _ = unix.Write(2, line) // if that fails there is no other place for messages
}

// whichRank returns this process's rank, from MPI or the environment.
func whichRank() (store.Proc, error) {
	opening.mu.Lock()
	defer opening.mu.Unlock()
	if opening.proc == nil {
		p, err := store.ProcFromEnv(opening.getenv)
		if err != nil {
			return p, err
		}
		opening.proc = &p
	}
	return *opening.proc, nil
}

// view returns where the kernel of this host has the files of this process.
func view() (v posixshim.View) {
	p, err := whichRank()
	if err != nil || opening.Config.Export == "" {
		return v
	}
	if opening.Config.View == config.ViewJob {
		p = store.Proc{Rank: 0, Size: 1} // nvmecr serve, like a process without a rank, has all files in one tree
	}
	v.Dir, v.Number = p.Tree()
	v.Dir = filepath.Join(opening.Config.Export, v.Dir)
	return v
}

// recordRank records the rank from MPI_Init. It fails if the partition of another
// rank may already be open.
func recordRank(job *mpiwrap.Job) error {
	opening.mu.Lock()
	defer opening.mu.Unlock()
	if p := opening.proc; p != nil && (p.Rank != job.Rank || p.Size != job.Size) {
		return fmt.Errorf("this is rank %d of %d by %s, and rank %d of %d by MPI_Init: the program must not use %s before MPI_Init: %w",
			p.Rank, p.Size, p.From, job.Rank, job.Size, opening.Config.Mount, unix.EINVAL)
	}
	if opening.Config.Mapping.ByHosts() {
		if opening.proc != nil {
			return fmt.Errorf("--mapping names hosts, and the host of each rank is known from MPI_Init on: the program must not use %s before MPI_Init: %w", opening.Config.Mount, unix.EINVAL)
		}
		opening.Config.Mapping = job.Plan // no file was open yet
	}
	opening.proc = &store.Proc{Rank: job.Rank, Size: job.Size, From: "MPI"}
	return nil
}

// hostName returns the scheduler's name of this host.
func hostName() string {
	if name := opening.getenv("SLURMD_NODENAME"); name != "" {
		return name
	}
	name, _ := os.Hostname() // if that fails the name is "", which is in no mapping
	return name
}

// mpiInit opens the partition for writing on all ranks, or fails on all of them. It is called in MPI_Init, on the thread of the
// application that has called that.
func mpiInit() error {
	job, err := mpiwrap.Join(opening.Config.Mapping, len(opening.Config.Targets), hostName())
	if errors.Is(err, mpiwrap.ErrNoMPI) { // this build has no MPI; the rank is in the launcher's environment
		return report(openForWriting())
	}
	if err == nil {
		if err = recordRank(job); err == nil {
			err = openInJob(job)
		} else {
			_ = job.Formatted(err) // ranks with the same target wait for this one
		}
		err = job.Agree(err)
	}
	return report(err)
}

// joint lets the thread that is in MPI_Init communicate with the ranks that have the same target.
type joint struct {
	thread    int
	formatted func() error // see store.Options
}

// openInJob opens the partition for writing. Formatted is a collective call of the ranks with the same target. The rank that
// formats the target calls it when the target has a partition table, or when that has failed. The others call it where they need
// the table, or after opening.
func openInJob(job *mpiwrap.Job) error {
	var once sync.Once
	var result error
	formatted := func(outcome error) error {
		once.Do(func() { result = job.Formatted(outcome) })
		return result
	}
	opening.joint.Store(&joint{unix.Gettid(), func() error { return formatted(nil) }})
	err := contained(openForWriting)
	opening.joint.Store(nil)
	_ = formatted(err) // if it has not been called yet; Agree returns the error
	return err
}

// formatted returns store.Options.Formatted; nil: poll instead. Only the thread that is in MPI_Init may use MPI. Other threads
// may open the partition at the same time.
func formatted() func() error {
	if j := opening.joint.Load(); j != nil && j.thread == unix.Gettid() {
		return j.formatted
	}
	return nil
}

// contained calls f, and returns EIO if f panics, so that the other ranks do not wait for this one.
func contained(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = process.Contain("MPI_Init", r)
		}
	}()
	return f()
}

// report makes an error of mpiInit the error of every later call. The rank whose own error it is prints it; the others fail with
// its errno.
func report(err error) error {
	if err == nil {
		return nil
	}
	var failed *mpiwrap.Disagreement
	switch {
	case !errors.As(err, &failed):
		complain("files under %s cannot be used: %v", opening.Config.Mount, err)
	case failed.Mine: // complain prints the rank
		complain("files under %s cannot be used: %s", opening.Config.Mount, failed.Cause)
	}
	errno := posixshim.Errno(err)
	process.Fail(errno)
	return errno
}

// mpiFinalize writes changes of mapped memory to the files. It closes nothing: after MPI_Init the runtime does not use MPI, and
// files work until the process ends.
func mpiFinalize() error { return process.SyncMappings() }

// finish closes all files and mounts when the process ends.
func finish() error {
	err := process.Finish()
	if cfg := opening.Config; err != nil && cfg != nil && cfg.Durability == config.DurableClose {
		complain("what was written may not be complete: %v", err) // no call returns this error
	}
	return err
}

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

// What a rank may cost beside its application.
const (
	// maxProcs is how many threads run Go code at once. Not fewer on a machine
	// with fewer cores: a thread in a system call keeps its place for as long as
	// the monitor thread naps, and another one of the application may want one.
	maxProcs  = 4
	gcPercent = 50 // the heap is small and seldom grows
)

// opening is how this process comes to its partition.
var opening struct {
	processfs.Opener
	getenv func(string) string

	mu   sync.Mutex
	proc *store.Proc // once it is known

	joint atomic.Pointer[joint] // while MPI_Init opens the partition
}

// start prepares the runtime. Nothing is opened: the process may be one that
// only asks for a path that is not there, or is about to call MPI_Init. own is
// called for descriptors.
func start(mount string, variables []byte, own unsafe.Pointer) error {
	ownfd.Keep(ownfd.Keeper{
		Hold: func(fd int) int { return callOwn(own, fd, ownHold) },
		Stay: func(fd int) { callOwn(own, fd, ownStay) },
		Drop: func(fd int) { callOwn(own, fd, ownDrop) },
		Aside: func(open func()) {
			callOwn(own, 0, ownAside)
			defer callOwn(own, 0, ownBeside)
			open()
		},
	})
	holdPoller()
	runtime.GOMAXPROCS(maxProcs)
	debug.SetGCPercent(gcPercent)
	process = posixshim.New(opening.Open, complain)
	opening.Process, opening.Proc, opening.Logf, opening.Formatted = process, where, complain, formatted
	process.Ending = dial.Retire
	process.Identify = store.Cred
	process.Successor = successor
	if err := process.Credentials(); err != nil {
		return err
	}
	opening.getenv = environment(variables)
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
	attachToServer(cfg)
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
	_, _ = unix.Write(2, line) // there is nowhere else to say it
}

// where returns this process's rank, from MPI or the environment.
func where() (store.Proc, error) {
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

// view is where the kernel of this host has the files of this process.
func view() (v posixshim.View) {
	p, err := where()
	if err != nil || opening.Config.Export == "" {
		return v
	}
	if opening.Config.View == config.ViewJob {
		p = store.Proc{Rank: 0, Size: 1} // the server writes no partition: it has the tree as a process without a rank has it
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

// hostName is how the scheduler calls this host.
func hostName() string {
	if name := opening.getenv("SLURMD_NODENAME"); name != "" {
		return name
	}
	name, _ := os.Hostname() // "": no plan has that
	return name
}

// mpiInit opens the partition for writing, on all ranks or on none. It is
// called inside MPI_Init, on the thread that the application called it on.
func mpiInit() error {
	job, err := mpiwrap.Join(opening.Config.Mapping, len(opening.Config.Targets), hostName())
	if errors.Is(err, mpiwrap.ErrNoMPI) { // this build has none: the launcher's environment will do
		return report(openForWriting())
	}
	if err == nil {
		if err = recordRank(job); err == nil {
			err = openInJob(job)
		} else {
			_ = job.Formatted(err) // the ranks that share the target wait for it
		}
		err = job.Agree(err)
	}
	return report(err)
}

// joint is how the thread that is in MPI_Init speaks with the ranks that share its target.
type joint struct {
	thread    int
	formatted func() error // as in store.Options
}

// openInJob opens the partition for writing. The rank that formats the target tells the others once
// there is a table, or that it has given up; they wait for it where they have to, and otherwise at
// the end.
func openInJob(job *mpiwrap.Job) error {
	var once sync.Once
	var told error
	formatted := func(outcome error) error {
		once.Do(func() { told = job.Formatted(outcome) })
		return told
	}
	opening.joint.Store(&joint{unix.Gettid(), func() error { return formatted(nil) }})
	err := contained(openForWriting)
	opening.joint.Store(nil)
	_ = formatted(err) // for those who do not know yet; Agree tells of it, too
	return err
}

// formatted returns store.Options.Formatted. MPI is for the thread that is in MPI_Init alone: others
// that open the partition at the same time poll.
func formatted() func() error {
	if j := opening.joint.Load(); j != nil && j.thread == unix.Gettid() {
		return j.formatted
	}
	return nil
}

// contained is f, or EIO if f panics: whatever happens to a rank, the others do not wait for it.
func contained(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = process.Contain("MPI_Init", r)
		}
	}()
	return f()
}

// report makes a failed MPI_Init the error of every later call. The rank that
// failed tells the user; the others fail with its errno.
func report(err error) error {
	if err == nil {
		return nil
	}
	var failed *mpiwrap.Disagreement
	switch {
	case !errors.As(err, &failed):
		complain("files under %s cannot be used: %v", opening.Config.Mount, err)
	case failed.Mine: // complain says which rank this is
		complain("files under %s cannot be used: %s", opening.Config.Mount, failed.Cause)
	}
	errno := posixshim.Errno(err)
	process.Fail(errno)
	return errno
}

// mpiFinalize has nothing to let go of: after MPI_Init the runtime does not
// use MPI, and files work until the process ends. Files that are mapped get what
// was written to their memory.
func mpiFinalize() error { return process.SyncMappings() }

// finish ends the use of the mount when the process ends.
func finish() error {
	err := process.Finish()
	if cfg := opening.Config; err != nil && cfg != nil && cfg.Durability == config.DurableClose {
		complain("what was written may not be complete: %v", err) // not reported elsewhere
	}
	return err
}

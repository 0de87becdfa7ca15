package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// threadName is the name of the runtime's threads: NV_THREAD of posixshim/shim/process.h.
const threadName = "nvmecr"

// leaveCore moves the runtime's threads away from the core that a launcher has pinned the process to, if it is only one. Their
// work there (a state checkpoint in the background, the garbage collector) would stop the application. They move to the other
// processors that the launcher itself may use. The kernel keeps them in the job's cpuset. The application's threads are not
// moved.
func leaveCore(getenv func(string) string) {
	var now unix.CPUSet
	if unix.SchedGetaffinity(0, &now) != nil {
		return
	}
	core := siblings(firstOf(&now))
	if without(now, core).Count() > 0 {
		return // the process has more than one core, and the kernel's scheduler finds an idle one
	}
	wide, ok := otherProcessors(core)
	if !ok {
		wide, ok = otherProcessors(now) // another hardware thread of the same core
	}
	if !ok || !granted(getenv("SLURM_CPUS_ON_NODE"), wide.Count()+now.Count()) {
		return
	}
	// A thread that is being created may not have its name yet, and has the processors that the first thread had. The second
	// round moves it.
	for range 2 {
		moveThreads(&wide)
	}
}

func moveThreads(to *unix.CPUSet) {
	tasks, _ := os.ReadDir("/proc/self/task") // without /proc the threads stay
	for _, task := range tasks {
		name, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/comm")
		if tid, err := strconv.Atoi(task.Name()); err == nil && strings.TrimSpace(string(name)) == threadName {
			_ = unix.SchedSetaffinity(tid, to) // fails if the cpuset does not have these processors any more
		}
	}
}

func firstOf(set *unix.CPUSet) int {
	cpu := 0
	for cpu < 64*len(set) && !set.IsSet(cpu) {
		cpu++
	}
	return cpu
}

func without(set, other unix.CPUSet) *unix.CPUSet {
	for i := range set {
		set[i] &^= other[i]
	}
	return &set
}

// siblings returns the hardware threads of the core of cpu.
func siblings(cpu int) (core unix.CPUSet) {
	core.Set(cpu)
	text, _ := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if isRange && err == nil {
			last, err = strconv.Atoi(to)
		}
		for ; err == nil && first <= last; first++ {
			core.Set(first)
		}
	}
	return core
}

// ancestor is a parent process, or the parent of one.
type ancestor struct {
	parent int
	user   int // the effective one
	name   string
}

func readStatus(pid int) (a ancestor, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		switch f := strings.Fields(line); {
		case len(f) < 2:
		case f[0] == "Name:":
			a.name = f[1]
		case f[0] == "PPid:":
			a.parent, err = strconv.Atoi(f[1])
		case f[0] == "Uid:" && len(f) > 2:
			a.user, err = strconv.Atoi(f[2])
		}
		if err != nil {
			return a, err
		}
	}
	return a, err
}

// otherProcessors returns the processors, without those of core, of the nearest ancestor that has any. It does not look above
// nvmecr run, which the user may have started on one core on purpose, nor above the daemon of a batch system.
func otherProcessors(core unix.CPUSet) (wide unix.CPUSet, ok bool) {
	user := os.Geteuid()
	for pid := os.Getppid(); pid > 1; {
		a, err := readStatus(pid)
		if err != nil || (a.user != user && a.user != 0) || unix.SchedGetaffinity(pid, &wide) != nil {
			return wide, false
		}
		if wide = *without(wide, core); wide.Count() > 0 {
			return wide, true
		}
		if a.user != user || a.name == "nvmecr" {
			return wide, false
		}
		pid = a.parent
	}
	return wide, false
}

// granted says whether the job may use count processors of this node. limit is what the batch system has told the job, which it
// may not enforce by a cpuset; "": nothing.
func granted(limit string, count int) bool {
	allowed, err := strconv.Atoi(limit)
	return limit == "" || err == nil && count <= allowed
}

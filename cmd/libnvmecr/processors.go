package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// threadName is what the shim calls the runtime's threads: NV_THREAD.
const threadName = "nvmecr"

// leaveCore moves the runtime's threads away from the one core that a launcher has pinned the process to: what they do
// there (a state checkpoint in the background, the garbage collector) would stop the application. They go to the others
// that the launcher itself may use. The kernel keeps them within the job's cpuset whatever is asked for. The application's threads stay
// where they are.
func leaveCore(getenv func(string) string) {
	var now unix.CPUSet
	if unix.SchedGetaffinity(0, &now) != nil {
		return
	}
	core := siblings(firstOf(&now))
	if without(now, core).Count() > 0 {
		return // there is more than one core: the scheduler finds the idle one
	}
	wide, ok := others(core)
	if !ok {
		wide, ok = others(now) // another thread of the same core
	}
	if !ok || !granted(getenv("SLURM_CPUS_ON_NODE"), wide.Count()+now.Count()) {
		return
	}
	for range 2 { // one that is being created may not have its name yet, and follows the first
		moveThreads(&wide)
	}
}

func moveThreads(to *unix.CPUSet) {
	tasks, _ := os.ReadDir("/proc/self/task") // where there are none, they stay
	for _, task := range tasks {
		name, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/comm")
		if tid, err := strconv.Atoi(task.Name()); err == nil && strings.TrimSpace(string(name)) == threadName {
			_ = unix.SchedSetaffinity(tid, to) // a cpuset may have become smaller
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

// siblings are the processors that are one core with cpu.
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

// ancestor is a process above this one.
type ancestor struct {
	parent int
	user   int
	name   string
}

func lookAt(pid int) (a ancestor, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		switch f := strings.Fields(line); {
		case len(f) < 2:
		case f[0] == "Name:":
			a.name = f[1]
		case f[0] == "PPid:":
			a.parent, err = strconv.Atoi(f[1])
		case f[0] == "Uid:" && len(f) > 2:
			a.user, err = strconv.Atoi(f[2]) // the effective one
		}
		if err != nil {
			return a, err
		}
	}
	return a, err
}

// others finds processors that are not of core, those of the nearest ancestor that has any. Not above `nvmecr run`,
// which may have been started on one core on purpose, and not above the daemon of a batch system.
func others(core unix.CPUSet) (wide unix.CPUSet, ok bool) {
	user := os.Geteuid()
	for pid := os.Getppid(); pid > 1; {
		a, err := lookAt(pid)
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

// granted says whether the job may have so many processors of this node. A batch system that does not confine its jobs
// tells them at least.
func granted(limit string, count int) bool {
	allowed, err := strconv.Atoi(limit)
	return limit == "" || err == nil && count <= allowed
}

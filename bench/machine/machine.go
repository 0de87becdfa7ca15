// Package machine describes the machine that an experiment ran on, so that a reader can
// judge what its numbers mean for other machines. Unknown values are left out. The
// package is safe for concurrent use.
package machine

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"nvmecr/bench/result"
)

// Describe returns the properties of this machine, and the versions of the programs
// that the experiments use. It starts each program once to ask for its version, for at
// most two seconds.
func Describe(ctx context.Context) []result.Fact {
	s := system{root: "/", ask: ask}
	var facts []result.Fact
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, result.Fact{Name: name, Value: value})
		}
	}
	add("CPU", s.cpu(runtime.NumCPU()))
	add("caches", s.caches())
	add("memory", s.memory())
	add("kernel", kernel())
	add("distribution", s.distribution())
	add("TCP congestion control", s.congestion())
	add("load when it began", s.load())
	add("Go", runtime.Version())
	for _, p := range programs {
		add(p.name, s.version(ctx, p))
	}
	return facts
}

// system is a machine as described by its file system.
type system struct {
	root string
	ask  func(ctx context.Context, name string, args ...string) string
}

// read returns the contents of a file without the white space around it, or an empty
// string.
func (s system) read(path string) string {
	b, err := os.ReadFile(filepath.Join(s.root, path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// field returns the text after "name:" at the start of a line of a file.
func (s system) field(path, name string) string {
	for line := range strings.Lines(s.read(path)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// cpu describes the processors, of which this process can use usable. It mentions
// properties that make their speed uncertain.
func (s system) cpu(usable int) string {
	model := cmp.Or(s.field("proc/cpuinfo", "model name"), s.field("proc/cpuinfo", "Model"), "unknown model")
	parts := []string{fmt.Sprintf("%s, %d usable", model, usable)}
	if present := strings.Count("\n"+s.read("proc/cpuinfo"), "\nprocessor"); present > usable {
		parts[0] += fmt.Sprintf(" of %d", present)
	}
	if s.read("sys/devices/system/cpu/smt/active") == "1" {
		parts = append(parts, "hyperthreads")
	}
	if nodes, err := filepath.Glob(filepath.Join(s.root, "sys/devices/system/node/node[0-9]*")); err == nil && len(nodes) > 1 {
		parts = append(parts, fmt.Sprintf("%d NUMA nodes", len(nodes)))
	}
	if governor := s.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"); governor != "" {
		parts = append(parts, "governor "+governor)
	}
	if strings.Contains(" "+s.field("proc/cpuinfo", "flags")+" ", " hypervisor ") {
		parts = append(parts, "a virtual machine: other guests may take time and memory bandwidth")
	}
	return strings.Join(parts, ", ")
}

// caches lists the caches of the first processor.
func (s system) caches() string {
	var parts []string
	for i := 0; ; i++ {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu0/cache/index%d/", i)
		level, size, kind := s.read(dir+"level"), s.read(dir+"size"), s.read(dir+"type")
		if level == "" {
			return strings.Join(parts, ", ")
		}
		if kind == "Instruction" {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSuffix(size, "K"), 10, 64); err == nil {
			size = strings.TrimSuffix(humanize.IBytes(n<<10), " B")
		}
		parts = append(parts, fmt.Sprintf("L%s %s", level, size))
	}
}

func (s system) memory() string {
	kib, err := strconv.ParseUint(strings.TrimSuffix(s.field("proc/meminfo", "MemTotal"), " kB"), 10, 64)
	if err != nil {
		return ""
	}
	text := humanize.IBytes(kib << 10)
	if huge := s.read("sys/kernel/mm/transparent_hugepage/enabled"); huge != "" {
		_, rest, _ := strings.Cut(huge, "[")
		choice, _, _ := strings.Cut(rest, "]")
		text += ", transparent huge pages " + choice
	}
	return text
}

func (s system) distribution() string {
	for line := range strings.Lines(s.read("etc/os-release")) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(name), `"`)
		}
	}
	return ""
}

// congestion returns the congestion control of nvmecr's sockets and of the system. One
// with pacing halves the bandwidth of the loopback interface.
func (s system) congestion() string {
	system := s.read("proc/sys/net/ipv4/tcp_congestion_control")
	if system == "" {
		return ""
	}
	ours := "reno"
	if strings.Contains(" "+s.read("proc/sys/net/ipv4/tcp_available_congestion_control")+" ", " cubic ") {
		ours = "cubic"
	}
	return fmt.Sprintf("%s on nvmecr's sockets, both ends; %s is the system's", ours, system)
}

func (s system) load() string {
	one, _, _ := strings.Cut(s.read("proc/loadavg"), " ")
	return one
}

// A program is used by the experiments if it is installed.
type program struct {
	name string
	argv []string
}

var programs = []program{
	{"Open MPI", []string{"mpirun.openmpi", "--version"}},
	{"MPICH", []string{"mpirun.mpich", "--version"}},
	{"Slurm", []string{"srun", "--version"}},
	{"IOR", []string{"ior", "--version"}},
	{"SPDK", []string{"spdk_nvme_perf", "--version"}},
}

var number = regexp.MustCompile(`[0-9]+\.[0-9][0-9.a-z]*`)

// version returns a program's version: the first number with a point in its output. It
// returns "installed" if there is none, and "not in PATH" if the program is missing.
func (s system) version(ctx context.Context, p program) string {
	said := s.ask(ctx, p.argv[0], p.argv[1:]...)
	if said == "" {
		return "not in PATH"
	}
	return cmp.Or(number.FindString(said), "installed")
}

// ask runs a program and returns its output. It returns an empty string if the program
// cannot be started.
func ask(ctx context.Context, name string, args ...string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// A program that fails because it has no option for its version is still installed.
	if err := cmd.Run(); err != nil && cmd.Process == nil {
		return ""
	}
	return out.String() + "\n"
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}

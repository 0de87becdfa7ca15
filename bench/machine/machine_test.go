package machine

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// made returns a machine whose file system has the given files.
func made(t *testing.T, files map[string]string) system {
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return system{root: root, ask: func(context.Context, string, ...string) string { return "" }}
}

// TestSystem checks the description of a machine.
func TestSystem(t *testing.T) {
	cache := "sys/devices/system/cpu/cpu0/cache/"
	s := made(t, map[string]string{
		"proc/cpuinfo": "processor\t: 0\nmodel name\t: Example 9000\nflags\t\t: fpu hypervisor\n\nprocessor\t: 1\nmodel name\t: Example 9000\n",
		"proc/meminfo": "MemTotal:       25165824 kB\nMemFree: 1 kB\n",
		"proc/loadavg": "0.42 0.10 0.05 2/125 1351\n",
		"proc/sys/net/ipv4/tcp_congestion_control":           "bbr\n",
		"proc/sys/net/ipv4/tcp_available_congestion_control": "reno bbr cubic\n",
		"etc/os-release":                    "NAME=x\nPRETTY_NAME=\"Example Linux 3\"\n",
		"sys/devices/system/cpu/smt/active": "1\n",
		"sys/devices/system/node/node0/x":   "", "sys/devices/system/node/node1/x": "",
		"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
		cache + "index0/level":                       "1\n", cache + "index0/size": "48K\n", cache + "index0/type": "Data\n",
		cache + "index1/level": "1\n", cache + "index1/size": "32K\n", cache + "index1/type": "Instruction\n",
		cache + "index2/level": "3\n", cache + "index2/size": "32768K\n", cache + "index2/type": "Unified\n",
	})
	assert.Equal(t, "Example 9000, 1 usable of 2, hyperthreads, 2 NUMA nodes, a virtual machine: other guests may take time and memory bandwidth", s.cpu(1))
	assert.Equal(t, "L1 48 KiB, L3 32 MiB", s.caches())
	assert.Equal(t, "24 GiB, transparent huge pages madvise", s.memory())
	assert.Equal(t, "0.42", s.load())
	assert.Equal(t, "cubic on nvmecr's sockets, both ends; bbr is the system's", s.congestion())
	assert.Equal(t, "Example Linux 3", s.distribution())
}

// TestNothingThere checks that unknown properties are left out.
func TestNothingThere(t *testing.T) {
	s := made(t, nil)
	assert.Equal(t, "unknown model, 4 usable", s.cpu(4))
	for _, v := range []string{s.caches(), s.memory(), s.load(), s.congestion(), s.distribution()} {
		assert.Empty(t, v)
	}
}

// TestVersion checks the versions that are found in the output of programs.
func TestVersion(t *testing.T) {
	for said, want := range map[string]string{
		"":                                "not in PATH",
		"mpirun (Open MPI) 4.1.4\n":       "4.1.4",
		"usage: mpirun\n":                 "installed",
		"mpirun (Open MPI)\n":             "installed",
		"HYDRA 1\n    Version:   4.0.2\n": "4.0.2",
		"slurm-wlm 22.05.8\n":             "22.05.8",
		"SPDK v26.05-rc1 git\n":           "26.05",
	} {
		s := system{ask: func(context.Context, string, ...string) string { return said }}
		assert.Equal(t, want, s.version(t.Context(), programs[0]), "%q", said)
	}
}

// TestAsk checks the output of programs that succeed, fail or do not exist.
func TestAsk(t *testing.T) {
	assert.Equal(t, "one\n\n", ask(t.Context(), "echo", "one"))
	assert.Empty(t, ask(t.Context(), "/nonexistent/program"))
	assert.Equal(t, "two\n\n", ask(t.Context(), "sh", "-c", "echo two >&2; exit 1"))
}

// TestDescribe checks that the description of this machine has the most important properties.
func TestDescribe(t *testing.T) {
	facts := map[string]string{}
	for _, f := range Describe(t.Context()) {
		assert.NotEmpty(t, f.Value, f.Name)
		facts[f.Name] = f.Value
	}
	assert.Contains(t, facts["kernel"], "Linux")
	assert.Contains(t, facts["Go"], "go1")
	assert.Contains(t, facts, "CPU")
	assert.Contains(t, facts, "memory")
}

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSPDKPaths checks that programs built with SPDK find each library of pkg-config, in any of SPDK's directories.
func TestSPDKPaths(t *testing.T) {
	if _, err := exec.LookPath("pkg-config"); err != nil {
		t.Skip("pkg-config is not installed")
	}
	for name, c := range map[string]struct {
		libs map[string]string // of spdk_*.pc; those of others are in the system's directories
		want string
		none bool // there is no spdk_syslibs.pc
	}{
		"installed in the system": {want: ""},
		"installed elsewhere":     {libs: map[string]string{"nvme": "Libs: -L/opt/spdk/lib -lspdk_nvme"}, want: "-Wl,-rpath,/opt/spdk/lib "},
		"build tree": {libs: map[string]string{
			"nvme":       "Libs: -L/src/spdk/build/lib -lspdk_nvme",
			"env_dpdk":   "Libs: -L/src/spdk/build/lib -lspdk_env_dpdk\nLibs.private: -L/src/spdk/dpdk/build/lib -lrte_eal",
			"sock_posix": "Libs: -L/src/spdk/build/lib -lspdk_sock_posix",
			"syslibs":    "Libs: -L/src/spdk/isa-l/.libs -lisal -laio",
		}, want: "-Wl,-rpath,/src/spdk/build/lib -Wl,-rpath,/src/spdk/dpdk/build/lib -Wl,-rpath,/src/spdk/isa-l/.libs "},
		"none": {none: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, lib := range []string{"nvme", "env_dpdk", "sock_posix", "syslibs"} {
				if c.none && lib == "syslibs" {
					continue
				}
				libs := c.libs[lib]
				if libs == "" {
					libs = "Libs: -lspdk_" + lib
				}
				text := fmt.Sprintf("Name: spdk_%s\nDescription: a stand-in\nVersion: 1\n%s\n", lib, libs)
				require.NoError(t, os.WriteFile(filepath.Join(dir, "spdk_"+lib+".pc"), []byte(text), 0o600))
			}
			cmd := exec.Command("../../scripts/spdk-rpath.sh")
			cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH=", "PKG_CONFIG_LIBDIR="+dir)
			out, err := cmd.Output()
			if c.none {
				assert.Error(t, err)
				return
			}
			require.NoError(t, err)
			assert.ElementsMatch(t, strings.Fields(c.want), strings.Fields(string(out)))
		})
	}
}

// TestStartedOnce checks that make fails if a built program cannot be started, for example for want of a symbol.
func TestStartedOnce(t *testing.T) {
	built, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	// lacking builds a library that calls an undefined function.
	lacking := func(t *testing.T, path string) {
		require.NoError(t, os.Remove(path)) // the link
		cmd := exec.Command("cc", "-shared", "-fPIC", "-x", "c", "-o", path, "-")
		cmd.Stdin = strings.NewReader("extern int crc64_of_a_later_isal(void); int (*nv_call)(void) = crc64_of_a_later_isal;")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  []string // empty: it can be started
	}{
		"as built": {spoil: func(*testing.T, string) {}},
		"a runtime lacks a symbol": {
			spoil: func(t *testing.T, dir string) { lacking(t, dir+"/libnvmecr-plain.so") },
			want:  []string{"crc64_of_a_later_isal", "cannot be started: libnvmecr-plain.so"}},
		"a runtime is not there": {
			spoil: func(t *testing.T, dir string) { require.NoError(t, os.Remove(dir+"/libnvmecr-plain.so")) },
			want:  []string{"cannot be started: libnvmecr-plain.so"}},
		"the preloaded library lacks a symbol": {
			spoil: func(t *testing.T, dir string) { lacking(t, dir+"/libnvmecr.so") },
			want:  []string{"crc64_of_a_later_isal", "cannot be started: libnvmecr-plain.so"}},
		"the command is not there": {
			spoil: func(t *testing.T, dir string) { require.NoError(t, os.Remove(dir+"/nvmecr")) },
			want:  []string{"cannot be started: nvmecr\n"}},
		"the benchmark is not there": {
			spoil: func(t *testing.T, dir string) { require.NoError(t, os.Remove(dir+"/nvmecr-bench")) },
			want:  []string{"cannot be started: nvmecr-bench\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, f := range []string{"nvmecr", "nvmecr-bench", "libnvmecr.so", "libnvmecr-plain.so"} {
				require.NoError(t, os.Symlink(filepath.Join(built, f), filepath.Join(dir, f)))
			}
			c.spoil(t, dir)
			// Settings of the caller of make have no effect.
			cmd := exec.Command("../../scripts/start.sh", dir, "plain")
			cmd.Env = append(os.Environ(), "NVMECR_TARGET=/nowhere", "NVMECR_MOUNT=/elsewhere")
			out, err := cmd.CombinedOutput()
			if c.want == nil {
				require.NoError(t, err, "%s", out)
				assert.Empty(t, out)
				return
			}
			assert.Error(t, err)
			for _, w := range c.want {
				assert.Contains(t, string(out), w)
			}
		})
	}
}

package preload

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
)

const (
	there = "trtype:TCP adrfam:IPv4 traddr:10.0.0.5 trsvcid:4420 subnqn:nqn.2014-08.org.example:a ns:1"
	here  = "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420 subnqn:nqn.2014-08.org.example:a ns:1"
)

func configured(t *testing.T, target string) *config.Config {
	cfg := config.Default()
	require.NoError(t, cfg.Set("target", target))
	return cfg
}

func TestPreloadIsPrepended(t *testing.T) {
	cfg := configured(t, here)
	for old, want := range map[string]string{
		"":                      "/x/libnvmecr.so",
		"/a.so":                 "/x/libnvmecr.so:/a.so",
		"/a.so /b.so":           "/x/libnvmecr.so:/a.so /b.so",
		"/a.so:/x/libnvmecr.so": "/a.so:/x/libnvmecr.so",
	} {
		env := Environ(cfg, []string{"HOME=/h", "LD_PRELOAD=" + old, "NVMECR_NAME=stale", "NVMECR_TARGET=file:/stale"}, "/x/libnvmecr.so")
		assert.Equal(t, want, lookup(env, "LD_PRELOAD"))
		assert.Equal(t, "/h", lookup(env, "HOME"))
		assert.Equal(t, "default", lookup(env, "NVMECR_NAME"))
		assert.Equal(t, here, lookup(env, "NVMECR_TARGET"))
		assert.Contains(t, env, "NVMECR_NAME=default")
		assert.NotContains(t, env, "NVMECR_NAME=stale")
	}
}

// TestCollectiveComponent checks that OMPIO's component vulcan is not used, unless the user has chosen a component.
func TestCollectiveComponent(t *testing.T) {
	cfg := configured(t, here)
	assert.Equal(t, "^vulcan", lookup(Environ(cfg, nil, "/x/libnvmecr.so"), "OMPI_MCA_fcoll"))
	assert.Equal(t, "vulcan", lookup(Environ(cfg, []string{"OMPI_MCA_fcoll=vulcan"}, "/x/libnvmecr.so"), "OMPI_MCA_fcoll"))
}

func TestCarryToOtherHosts(t *testing.T) {
	// A launcher that is OpenMPI's under another name, and one that is not.
	bin := t.TempDir()
	for _, program := range []string{"orterun", "hydra"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"), 0o700))
	}
	require.NoError(t, os.Symlink("orterun", filepath.Join(bin, "mpirun")))
	t.Setenv("PATH", bin)

	argv := []string{"mpirun", "-n", "4", "app"}
	with := []string{"mpirun", "-x", "FOO", "-n", "4", "app"}
	base := []string{"A=1"}

	got, env := Propagate(configured(t, here), argv, base)
	assert.Equal(t, argv, got)
	assert.Empty(t, lookup(env, ompiEnvList), "only this host can reach the target")

	got, env = Propagate(configured(t, there), argv, base)
	assert.Equal(t, argv, got)
	list := lookup(env, ompiEnvList)
	assert.Contains(t, list, "LD_PRELOAD;")
	assert.Contains(t, list, ";NVMECR_TARGET;")

	_, env = Propagate(configured(t, there), argv, []string{ompiEnvList + "=FOO;BAR=1"})
	assert.Equal(t, "FOO;BAR=1;"+list, lookup(env, ompiEnvList))

	_, again := Propagate(configured(t, there), argv, env)
	assert.Equal(t, env, again, "the run is a part of another one")

	got, env = Propagate(configured(t, there), with, base)
	assert.Empty(t, lookup(env, ompiEnvList), "mpirun refuses both")
	assert.Equal(t, []string{"mpirun", "-x", "LD_PRELOAD", "-x"}, got[:4])
	assert.Equal(t, with[1:], got[len(got)-len(with)+1:])

	got, env = Propagate(configured(t, there), []string{"hydra", "app", "-x"}, base)
	assert.Equal(t, []string{"hydra", "app", "-x"}, got, "-x is the application's")
	assert.Equal(t, list, lookup(env, ompiEnvList))
}

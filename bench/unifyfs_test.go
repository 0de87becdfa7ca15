package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo/demotest"
	"nvmecr/nvmf"
)

// TestFindUnifyFS checks that the error names the missing part of UnifyFS, and how to get it.
func TestFindUnifyFS(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "bin")
	t.Setenv("PATH", bin)
	_, _, err := findUnifyFS()
	assert.EqualError(t, err, "unifyfsd is not installed, or not in PATH")

	require.NoError(t, os.Mkdir(bin, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "unifyfsd"), nil, 0o700))
	_, _, err = findUnifyFS()
	assert.ErrorContains(t, err, "--enable-preload")

	lib := filepath.Join(filepath.Dir(bin), "lib64")
	require.NoError(t, os.Mkdir(lib, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(lib, unifyfsLibrary), nil, 0o600))
	server, library, err := findUnifyFS()
	require.NoError(t, err)
	assert.Equal(t, []string{filepath.Join(bin, "unifyfsd"), filepath.Join(lib, unifyfsLibrary)}, []string{server, library})
}

// TestBrokenUnifyFS checks the errors for a server that does not start, and for a library that
// mounts nothing.
func TestBrokenUnifyFS(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting takes root")
	}
	for name, tt := range map[string]struct{ server, why string }{
		"server":  {"#!/bin/sh\necho no memory >\"$UNIFYFS_LOG_DIR/unifyfsd.log.host\"\n", "no memory"},
		"library": {"#!/bin/sh\n: >\"$UNIFYFS_RUNSTATE_DIR/unifyfsd.pids\"\nexec sleep 600\n", "/unifyfs/"},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(prefix, "bin"), 0o700))
			require.NoError(t, os.Mkdir(filepath.Join(prefix, "lib"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(prefix, "bin", "unifyfsd"), []byte(tt.server), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(prefix, "lib", unifyfsLibrary), nil, 0o600))
			b := unifyfsTestbed(t)
			t.Setenv("PATH", filepath.Join(prefix, "bin")+":"+os.Getenv("PATH"))
			_, err := b.unifyfsSide(t.Context())
			assert.ErrorContains(t, err, tt.why)
			require.NoError(t, b.Close())
		})
	}
}

// TestUnifyFS has ranks with UnifyFS write and read more than their logs can hold at a
// time. UnifyFS must leave no file behind.
func TestUnifyFS(t *testing.T) {
	if _, _, err := findUnifyFS(); err != nil {
		t.Skip(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("mounting takes root")
	}
	b := unifyfsTestbed(t)
	s, err := b.unifyfsSide(t.Context())
	require.NoError(t, err)
	w := work{size: b.env.Size, transfer: b.env.Transfer}
	for k := range 5 {
		_, err := s.write(t.Context(), w, k)
		require.NoError(t, err)
		_, err = s.read(t.Context(), w, k) // also compares the data
		require.NoError(t, err)
	}
	logs, err := filepath.Glob("/dev/shm/logio_mem.*")
	require.NoError(t, err)
	assert.Empty(t, logs, "logs are not visible to other processes")
	require.NoError(t, b.Close())
	left, err := os.ReadDir(b.env.scratch)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func unifyfsTestbed(t *testing.T) *testbed {
	t.Helper()
	rank := filepath.Join(filepath.Dir(demotest.Nvmecr(t)), "nvmecr-bench-rank")
	e := &Env{Rank: rank, Ranks: 2, Size: 8 * nvmf.MiB, Transfer: nvmf.MiB, scratch: t.TempDir()}
	return &testbed{env: e}
}

package main

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var made = sync.OnceValues(func() ([]byte, error) {
	// Under make it has just been built.
	if os.Getenv("MAKELEVEL") != "" {
		return nil, nil
	}
	return exec.Command("make", "-s", "-C", "../..", "all").CombinedOutput()
})

// nvmecr returns the path of the command, built from what is here now.
func nvmecr(t *testing.T) string {
	out, err := made()
	require.NoError(t, err, string(out))
	return "../../bin/nvmecr"
}

// TestSoak is a short one.
func TestSoak(t *testing.T) {
	long := 12 * time.Second
	if testing.Short() {
		long = 2 * time.Second
	}
	var out strings.Builder
	err := soak(&out, options{
		nvmecr: nvmecr(t), long: long, round: 4 * time.Second, ranks: 2,
		seed: uint64(time.Now().UnixNano()) % 1_000_000, keep: true,
	})
	t.Log(out.String())
	require.NoError(t, err)
}

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo/demotest"
)

// TestSoak is a short one.
func TestSoak(t *testing.T) {
	long := 12 * time.Second
	if testing.Short() {
		long = 2 * time.Second
	}
	var out strings.Builder
	err := soak(&out, options{
		nvmecr: demotest.Nvmecr(t), long: long, round: 4 * time.Second, ranks: 2,
		seed: uint64(time.Now().UnixNano()) % 1_000_000, keep: true,
	})
	t.Log(out.String())
	require.NoError(t, err)
}

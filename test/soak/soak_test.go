package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo/demotest"
)

// TestSoak runs short soaks, with private files and with one tree.
func TestSoak(t *testing.T) {
	long := 6 * time.Second
	if testing.Short() {
		long = 2 * time.Second
	}
	for _, tree := range []bool{false, true} {
		t.Run(fmt.Sprintf("tree %t", tree), func(t *testing.T) {
			var out strings.Builder
			err := soak(&out, options{
				nvmecr: demotest.Nvmecr(t), long: long, round: 4 * time.Second, ranks: 2, tree: tree,
				seed: uint64(time.Now().UnixNano()) % 1_000_000, keep: true,
			})
			t.Log(out.String())
			require.NoError(t, err)
		})
	}
}

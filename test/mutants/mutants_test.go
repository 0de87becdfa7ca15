// Package mutants tests the tests.
//
// Each deliberate fault of internal/mutant, switched on in a build with the tag
// "mutants", must make one of the crash and fault tests of the log and the file
// system fail: which one is looked for, and printed. Those faults are of a scheme
// whose tests are random in part.
//
// All other packages have lists of edits (list_test.go says which): a fault is a piece of source
// that is compiled otherwise, so that nothing of it is in the program, and names
// the quick tests of which one has to fail. `make mutants` tries them all; `make test`
// checks that the list applies to the present code and tests.
package mutants

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/mutant"
)

// packages have the tests that must detect the faults.
var packages = []string{"../../oplog", "../../microfs"}

// patience is how long a test may run with a fault. A fault that makes a test hang counts as detected.
const patience = 3 * time.Minute

// likely are tests that quickly detect most faults. They are run first, and all others only for faults that they do not detect.
const likely = "^Test(Pending|LatePageOfTheDead|Coalescing|Unchanged|Allocate|LateAfterDeath|MisdirectedWrites|" +
	"DamageAfterLostMirror|TakenOver|CheckUnreadable|PowerLossInPlan|Disconnect|CheckCrash|CrashLong|RefusedStaysRefused)$"

// soonest are tests that quickly detect a fault which most of the likely tests do not. They are run before these. The table of
// TestMutants names them.
var soonest = map[mutant.Fault]string{
	mutant.NoSeal:        "TestLateAfterDeath",
	mutant.EarlyReuse:    "TestCrashLong",
	mutant.NoHeaderFlush: "TestCrashLong",
	mutant.NoFlush:       "TestCrashLong",
	mutant.NoMark:        "TestMisdirectedWrites",
	mutant.SameArea:      "TestCheckCrash",
	mutant.EarlyRelease:  "TestCrashLong",
	mutant.NoRetire:      "TestDisconnect",
	mutant.NoClaimCheck:  "TestTakenOver",
	mutant.NoReadCheck:   "TestMisdirectedWrites",
	mutant.NoMore:        "TestCrashLong",
	mutant.NoFreeze:      "TestCrashLong",
	mutant.NoSupersede:   "TestRefusedStaysRefused",
}

func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs other packages' tests")
	}
	binaries := make([]string, len(packages))
	for i, dir := range packages {
		binaries[i] = filepath.Join(t.TempDir(), "test")
		out, err := exec.Command("go", "test", "-c", "-tags", "mutants", "-o", binaries[i], dir).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	sound := func(t *testing.T, flags ...string) {
		require.Empty(t, caughtBy(t, binaries, "", flags...), "fails without a fault")
	}
	t.Run("none", func(t *testing.T) { sound(t, "-test.short", "-test.run", likely) })
	var others sync.Once
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "FAULT\tCAUGHT BY\tAFTER")
	for _, m := range mutant.All {
		t.Run(string(m.Fault), func(t *testing.T) {
			begin := time.Now()
			by := ""
			if first := soonest[m.Fault]; first != "" {
				by = caughtBy(t, binaries, m.Fault, "-test.short", "-test.run", "^"+first+"$")
			}
			if by == "" {
				by = caughtBy(t, binaries, m.Fault, "-test.short", "-test.run", likely)
			}
			if by == "" {
				others.Do(func() { sound(t, "-test.short") })
				by = caughtBy(t, binaries, m.Fault, "-test.short")
			}
			if by == "" { // the short tests are random in part
				by = caughtBy(t, binaries, m.Fault)
			}
			fmt.Fprintf(w, "%s\t%s\t%.1f s\n", m.Fault, by, time.Since(begin).Seconds())
			require.NotEmpty(t, by, "nothing notices that %s", m.Text)
		})
	}
	require.NoError(t, w.Flush())
	fmt.Print(table.String())
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// caughtBy returns the test that fails with a fault; empty if none does.
func caughtBy(t *testing.T, binaries []string, f mutant.Fault, flags ...string) string {
	for i, binary := range binaries {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, binary, append(flags, "-test.failfast", "-test.paniconexit0")...)
		cmd.Dir = packages[i]
		cmd.Env = append(os.Environ(), "NVMECR_MUTANT="+string(f))
		out, err := cmd.CombinedOutput()
		hangs := ctx.Err() != nil
		cancel()
		name := filepath.Base(packages[i])
		switch {
		case hangs:
			return name + " hangs"
		case err != nil:
			var exit *exec.ExitError
			require.True(t, errors.As(err, &exit), err)
			if f == "" {
				t.Log(string(out))
			}
			for _, m := range failed.FindAllStringSubmatch(string(out), -1) {
				return name + "." + strings.SplitN(m[1], "/", 2)[0]
			}
			return name + " panics"
		}
	}
	return ""
}

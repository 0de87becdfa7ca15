package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/demo"
)

// copyTargets creates files as targets, or replaces lost ones, and returns the flags that name all.
func copyTargets(t *testing.T, s *demo.Stage, targets int, lost ...int) (flags []string) {
	for i := range targets {
		flags = append(flags, "--target", "file:"+filepath.Join(s.Dir, fmt.Sprint("target.", i)))
	}
	for _, i := range lost {
		name := filepath.Join(s.Dir, fmt.Sprint("target.", i))
		_ = os.Remove(name) // does not exist at first
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		require.NoError(t, os.Truncate(name, 256<<20))
	}
	return flags
}

// TestCopies replaces each target in turn: the next run has the newest complete checkpoint, byte for byte, and both copies again. The
// loss of more targets is reported.
func TestCopies(t *testing.T) {
	t.Parallel()
	const pattern = "ck-{step}/**"
	for _, c := range []struct {
		view    config.View
		targets int
		lost    int
	}{
		{config.ViewJob, 3, 0}, // with the index
		{config.ViewJob, 2, 1},
		{config.ViewRank, 2, 1},
	} {
		t.Run(fmt.Sprintf("%s, %d targets, %d lost", c.view, c.targets, c.lost), func(t *testing.T) {
			s := newStage(t)
			s.View = c.view
			all := []int{0, 1, 2}[:c.targets]
			flags := append(copyTargets(t, s, c.targets, all...), "--copies", "partner", "--level2-pattern", pattern)
			sh(t, s, writeSets, flags...)
			list := func() []string { return levels(t, call(t, s, "checkpoints", "--json", pattern)) }
			require.Contains(t, list(), "200 [store copies] true")
			assert.Contains(t, list(), "100 [store] true", "each newest one is copied")
			before := filepath.Join(s.Dir, "before")
			call(t, s, "cp", "/", before) // reports the file that rank 1 has not closed

			copyTargets(t, s, c.targets, c.lost)
			require.Contains(t, list(), "200 [copies] true")
			assert.NotContains(t, call(t, s, "checkpoints", "--json", pattern).stdout, `"protected": true`, "the copies are all that is left")
			r := sh(t, s, "true")
			r.ok(t)
			assert.Contains(t, r.stderr, "newest complete checkpoint of "+pattern+": 200, ")
			assert.Contains(t, r.stderr, "copied back from copies/ck-200")
			assert.Contains(t, r.stderr, "no target has the partitions of 1 of 3 ranks")
			require.Contains(t, list(), "200 [store copies] true")
			assert.Contains(t, call(t, s, "checkpoints", pattern).stdout, "store, copies  ", "all parts are there again")
			after := filepath.Join(s.Dir, "after")
			call(t, s, "cp", "/", after)
			was, is := tree(t, before), tree(t, after)
			found := 0
			for name, data := range was {
				if filepath.Base(filepath.Dir(name)) == "ck-200" || filepath.Base(filepath.Dir(filepath.Dir(name))) == "ck-200" {
					require.Equal(t, data, is[name], name)
					found++
				}
			}
			require.Equal(t, 6, found)

			copyTargets(t, s, c.targets, all[:2]...) // two failure domains
			assert.NotContains(t, call(t, s, "checkpoints", pattern).stdout, "  yes", "what is lost is not taken for whole")
			assert.NotContains(t, sh(t, s, "true").stderr, "newest complete checkpoint")
		})
	}
}

// TestCopiesOfOne checks that a job of one process has copies, on targets that no rank has formatted, and that a larger job later finds
// them.
func TestCopiesOfOne(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"partner", "rs:2+1"} {
		t.Run(how, func(t *testing.T) {
			s := newStage(t)
			flags := append(copyTargets(t, s, 3, 0, 1, 2), "--copies", how)
			want := bytes.Repeat([]byte("state "), 50000)
			require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "in"), want, 0o600))
			r := sh(t, s, "cp in /nvmecr/ck-100.pt", flags...)
			r.ok(t)
			require.NotContains(t, r.stderr, "copy area", "which all targets have")
			require.Contains(t, call(t, s, "checkpoints").ok(t), "ck-")

			copyTargets(t, s, 3, 0) // with all data of the program
			require.Contains(t, strings.Join(levels(t, call(t, s, "checkpoints", "--json")), ";"), "100 [")
			out := sh(t, s, "cat /nvmecr/ck-100.pt; for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r sh -c 'echo more > /nvmecr/more.$PMI_RANK'; done").ok(t)
			assert.Equal(t, string(want), out)

			copyTargets(t, s, 3, 2)
			r = sh(t, s, "cmp in /nvmecr/ck-100.pt")
			r.ok(t)
			assert.Contains(t, r.stderr, "no target has the partitions of 1 of 3 ranks")
		})
	}
}

// TestCopiesRefused checks the errors of impossible requests.
func TestCopiesRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, "true", "--copies", "partner").refused(t, "--copies", "a second target")
	sh(t, s, "true", "--copies", "three").refused(t, "--copies", "partner")
	flags := copyTargets(t, s, 2, 0, 1)
	sh(t, s, "echo x > /nvmecr/ck.1", flags...).ok(t)
	sh(t, s, "true", append(flags, "--copies", "partner")...).refused(t, "formatted without a copy area", "--fresh")
}

// spoilTarget inverts a byte of some data on a target, and returns the number of that target. It skips the targets in alone.
func spoilTarget(t *testing.T, s *demo.Stage, targets int, data []byte, alone ...int) int {
	for i := range targets {
		name := filepath.Join(s.Dir, fmt.Sprint("target.", i))
		image, err := os.ReadFile(name)
		require.NoError(t, err)
		if at := bytes.Index(image, data); at >= 0 && !slices.Contains(alone, i) {
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte{image[at] ^ 1}, int64(at))
			require.NoError(t, errors.Join(err, f.Close()))
			return i
		}
	}
	require.Fail(t, "no target has it")
	return -1
}

// TestVerifyRepair checks that verify --repair restores a damaged checkpoint from its copy, and the copy from the checkpoint, and that
// damage in both is reported.
func TestVerifyRepair(t *testing.T) {
	t.Parallel()
	for _, view := range []config.View{config.ViewJob, config.ViewRank} {
		t.Run(string(view), func(t *testing.T) {
			s := newStage(t)
			s.View = view
			flags := append(copyTargets(t, s, 3, 0, 1, 2), "--copies", "partner")
			sh(t, s, "for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r sh -c 'head -c 300000 /dev/urandom > /nvmecr/ck.200.$PMI_RANK' & done; wait", flags...).ok(t)
			before := filepath.Join(s.Dir, "before")
			call(t, s, "cp", "/", before).ok(t)
			files := tree(t, before)
			part := func(rank, off int) []byte {
				for name, data := range files {
					if strings.HasSuffix(name, fmt.Sprint("ck.200.", rank)) {
						return data[off : off+64]
					}
				}
				return nil
			}
			const unit = 32 << 10
			first := spoilTarget(t, s, 3, part(1, 0)) // the file, or its copy
			spoilTarget(t, s, 3, part(1, 2*unit), first)
			spoilTarget(t, s, 3, part(2, 299936))
			r := call(t, s, "verify")
			assert.Equal(t, 1, r.code)
			assert.Equal(t, 3, strings.Count(r.stdout, ": damaged\n"), r.stdout)
			out := call(t, s, "verify", "--repair").ok(t)
			assert.Equal(t, 3, strings.Count(out, ": damaged, and restored\n"), out)
			assert.Contains(t, out, "all data matches its checksums, 3 files repaired\n")
			assert.NotContains(t, call(t, s, "verify").ok(t), "damaged")
			assert.Contains(t, call(t, s, "checkpoints", "--json").ok(t), "storeVerified")
			after := filepath.Join(s.Dir, "after")
			call(t, s, "cp", "/", after).ok(t)
			require.True(t, sameTree(files, tree(t, after)))

			spoilTarget(t, s, 3, part(0, unit), spoilTarget(t, s, 3, part(0, unit)))
			spoilTarget(t, s, 3, part(0, 5*unit))
			r = call(t, s, "verify", "--repair")
			assert.Equal(t, 1, r.code)
			assert.Equal(t, 2, strings.Count(r.stdout, ": damaged, and not repaired: "), r.stdout)
			assert.Equal(t, 1, strings.Count(r.stdout, ": damaged, and restored\n"), r.stdout)
			assert.NotContains(t, call(t, s, "checkpoints", "--json").ok(t), "storeVerified", "a verification has found damage since")
		})
	}
}

// TestDamagedNewest damages a sector of the newest checkpoints. The newest one is copied to the second level if copies have the bytes
// that cannot be read. Without copies nvmecr reports the damage and copies an older checkpoint.
func TestDamagedNewest(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"none", "partner", "rs:2+1"} {
		t.Run(how, func(t *testing.T) {
			s := newStage(t)
			flags := append(copyTargets(t, s, 3, 0, 1, 2), "--copies", how)
			data := make([]byte, 300_000)
			for _, step := range []string{"100", "200", "300"} {
				for i := range data {
					data[i] = byte(rand.Uint32())
				}
				require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "in"), data, 0o600))
				sh(t, s, "for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r sh -c '{ [ $PMI_RANK = 1 ] && cat in || echo x; } >/nvmecr/ck."+step+".$PMI_RANK' & done; wait", flags...).ok(t)
				if step != "100" {
					spoilTarget(t, s, 3, data[:64<<10], 0, 2) // target 1 has the data in the partition of rank 1
				}
			}
			require.NoError(t, os.Mkdir(filepath.Join(s.Dir, "lustre"), 0o700))
			r := call(t, s, "drain", "--level2", filepath.Join(s.Dir, "lustre"))
			name := "300"
			if how == "none" {
				name = "100"
				assert.Equal(t, 1, r.code)
				assert.Equal(t, 2, strings.Count(r.stderr, "the store cannot be read there"), r.stderr)
			} else {
				r.ok(t)
			}
			assert.Contains(t, r.stdout, name+": 3 files of 293 KiB copied to ")
			if how == "none" {
				r := sh(t, s, "true", "--level2", filepath.Join(s.Dir, "lustre"))
				assert.Equal(t, 2, strings.Count(r.ok(t)+r.stderr, "the newest one that can be read is copied"), r.stderr)
				return
			}
			got, err := os.ReadFile(filepath.Join(s.Dir, "lustre", "default", "ck.300", "ck.300.1"))
			require.NoError(t, err)
			assert.Equal(t, data, got)
		})
	}
}

// TestRebuild checks that older checkpoints are restored from their copies, too.
func TestRebuild(t *testing.T) {
	t.Parallel()
	const pattern = "ck-{step}/**"
	s := newStage(t)
	flags := append(copyTargets(t, s, 3, 0, 1, 2), "--copies", "partner", "--level2-pattern", pattern)
	for _, step := range []string{"100", "200"} { // each run copies its newest checkpoint
		sh(t, s, "for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r sh -c 'mkdir -p /nvmecr/ck-"+step+"; head -c 300000 /dev/urandom > /nvmecr/ck-"+step+"/state.$PMI_RANK' & done; wait", flags...).ok(t)
	}
	before, after := filepath.Join(s.Dir, "before"), filepath.Join(s.Dir, "after")
	call(t, s, "cp", "/", before).ok(t)
	copyTargets(t, s, 3, 2)
	r := call(t, s, append([]string{"rebuild", pattern}, flags[:6]...)...)
	assert.Equal(t, "1 of 1: 100: 1 file of 293 KiB copied back from copies/ck-100\n", r.ok(t))
	assert.Contains(t, r.stderr, ": 200, 1 file of 293 KiB copied back from copies/ck-200")
	call(t, s, "cp", "/", after).ok(t)
	assert.True(t, sameTree(tree(t, before), tree(t, after)), "byte for byte")
	r = call(t, s, "rebuild", pattern)
	assert.Equal(t, "no checkpoint that has copies lacks a file\n", r.ok(t))
	assert.NotContains(t, r.stderr, "does the program write there?")
}

// TestRebuildElsewhere rebuilds on a host without a record of the store. The files of any lost target are restored to a target of another
// name, and all targets have copy areas again.
func TestRebuildElsewhere(t *testing.T) {
	t.Parallel()
	for targets := 2; targets <= 4; targets++ {
		for lost := range targets {
			ranks := 1 + (targets+lost)%4
			view := []config.View{config.ViewJob, config.ViewRank}[(ranks+lost)%2]
			how := []string{"partner", "rs:1+1"}[lost%2]
			t.Run(fmt.Sprintf("%d ranks, %s, %s, %d targets, %d lost", ranks, view, how, targets, lost), func(t *testing.T) {
				s := newStage(t)
				s.View = view
				all := []int{0, 1, 2, 3}[:targets]
				flags := copyTargets(t, s, targets, all...)
				sh(t, s, oneSet(fmt.Sprint(ranks), "200", "all"), append(flags, "--copies", how)...).ok(t)
				require.Equal(t, []string{"200 [store copies] true"}, levels(t, call(t, s, "checkpoints", "--json")))
				before, after := filepath.Join(s.Dir, "before"), filepath.Join(s.Dir, "after")
				call(t, s, "cp", "/", before).ok(t)

				copyTargets(t, s, targets, lost)
				flags[2*lost+1] += ".new"
				require.NoError(t, os.Rename(filepath.Join(s.Dir, fmt.Sprint("target.", lost)), filepath.Join(s.Dir, fmt.Sprintf("target.%d.new", lost))))
				require.NoError(t, os.RemoveAll(filepath.Dir(s.Image("default"))))
				call(t, s, append([]string{"rebuild"}, flags...)...).ok(t)
				call(t, s, "cp", "/", after).ok(t)
				assert.True(t, sameTree(tree(t, before), tree(t, after)), "byte for byte")

				if view == config.ViewJob {
					ranks = 4
				}
				r := sh(t, s, oneSet(fmt.Sprint(ranks), "300", "all"))
				r.ok(t)
				assert.NotContains(t, r.stderr, "copy area")
				assert.Contains(t, levels(t, call(t, s, "checkpoints", "--json")), "300 [store copies] true")
				assert.NotContains(t, call(t, s, "checkpoints", "--json").stdout, `"protected": false`)
			})
		}
	}
}

// TestRebuildKilled kills a rebuild with all its processes. The next one completes the work, whichever target was lost.
func TestRebuildKilled(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	flags := append(copyTargets(t, s, 3, 0, 1, 2), "--copies", "partner")
	sh(t, s, "for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r sh -c 'head -c 9000000 /dev/urandom > /nvmecr/ck.200.$PMI_RANK' & done; wait", flags...).ok(t)
	before := filepath.Join(s.Dir, "before")
	call(t, s, "cp", "/", before).ok(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 3 {
		lost := random.IntN(3)
		copyTargets(t, s, 3, lost)
		run, err := s.Start([]string{s.Nvmecr, "rebuild"})
		require.NoError(t, err)
		time.Sleep(time.Duration(random.IntN(600)) * time.Millisecond) // any time
		_, err = s.Kill()
		require.NoError(t, err)
		_ = run.Wait(t.Context()) // killed, or complete
		r := call(t, s, "rebuild")
		r.ok(t)
		after := filepath.Join(s.Dir, fmt.Sprint("after", round))
		call(t, s, "cp", "/", after).ok(t)
		require.True(t, sameTree(tree(t, before), tree(t, after)), "target %d: %s", lost, r.stderr)
		require.Contains(t, call(t, s, "checkpoints").stdout, "store, copies  ", "target %d: %s", lost, r.stderr)
	}
}

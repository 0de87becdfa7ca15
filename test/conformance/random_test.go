package conformance

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo/demotest"
)

var (
	randomSeed  = flag.Uint64("random-seed", 0, "of TestRandomRanks; 0: another one each time")
	randomCases = flag.Int("random-cases", 20, "of TestRandomRanks, how many")
)

// TestRandomRanks runs random cases, by two ranks and a process without a rank in turn: in a local directory, and in the tree of a job.
// Each write is synced, and so is each file before it is read: states in between are not promised.
func TestRandomRanks(t *testing.T) {
	seed := *randomSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("go test ./test/conformance -run TestRandomRanks -random-seed %d -random-cases %d", seed, *randomCases)
	s := newStage(t)
	nvmecr := filepath.Join(s.dir, "nvmecr")
	copyFile(t, demotest.Nvmecr(t), nvmecr)
	plain := s.compile("plain", "-O1")
	var cases []testCase
	for i := range *randomCases {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		cases = append(cases, testCase{name: fmt.Sprint("random ", i), steps: randomSteps(r, 50)})
	}
	local := filepath.Join(s.dir, "local")
	require.NoError(t, os.Mkdir(local, 0o700))
	ranks := []string{"PMI_RANK=0 PMI_SIZE=2", "PMI_RANK=1 PMI_SIZE=2", ""}
	want := s.inTurn(plain, local, false, cases, ranks)
	got := s.inTurn(plain, mount, false, cases, ranks, nvmecr, "run", "--view=job", "--")
	for _, c := range cases {
		if i := firstDifference(want[c.name], got[c.name]); i >= 0 {
			var said strings.Builder
			for k, turn := range turns(c.steps, len(ranks))[:min(i+1, len(c.steps))] {
				fmt.Fprintf(&said, "  process %d: %s\n", turn, got[c.name][k])
			}
			require.Fail(t, "a case differs", "%s of seed %d:\n%s  locally: %s", c.name, seed, said.String(), want[c.name][min(i, len(want[c.name])-1)])
		}
	}
}

func firstDifference(want, got []string) int {
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			return i
		}
	}
	return -1
}

// A walk generates the steps of a case.
type walk struct {
	*rand.Rand
	steps []string
	open  []string // registers
	count int
}

func randomSteps(r *rand.Rand, n int) []string {
	w := &walk{Rand: r}
	for len(w.steps) < n {
		w.step()
	}
	for _, f := range w.open {
		w.do("close %s", f)
	}
	return w.steps
}

func (w *walk) do(format string, args ...any) {
	w.steps = append(w.steps, fmt.Sprintf(format, args...))
}

func (w *walk) one(words ...string) string { return words[w.IntN(len(words))] }

func (w *walk) name() string {
	return w.one("a", "a", "b", "d", "e", "d/a", "d/b", "e/a", "d/e", "s", "s/a", "nowhere/a")
}

func (w *walk) size() int {
	return []int{w.IntN(40), w.IntN(5000), w.IntN(70000), 4096 * w.IntN(20)}[w.IntN(4)]
}

func (w *walk) text() string {
	return fmt.Sprintf("{%d:%c}", 1+w.size(), 'a'+rune(w.IntN(26)))
}

func (w *walk) step() {
	if len(w.open) == 0 || w.IntN(7) == 0 && len(w.open) < 6 {
		w.openFile()
		return
	}
	if w.IntN(2) == 0 {
		w.names()
		return
	}
	switch f := w.one(w.open...); w.IntN(13) {
	case 0, 1:
		w.do("write %s %s", f, w.text())
		w.do("fsync %s", f)
	case 2, 3, 4:
		w.do("pwrite %s %s %d", f, w.text(), w.size())
		w.do("fsync %s", f)
	case 5, 6:
		w.do("fsync %s", f)
		w.do("pread %s %d %d", f, 1+w.size(), w.size())
	case 7:
		w.do("fsync %s", f)
		w.do("fstat %s", f)
	case 8:
		w.do("ftruncate %s %d", f, w.size())
	case 9:
		w.do("fallocate %s %s %d %d", f, w.one("0", "FALLOC_FL_PUNCH_HOLE|FALLOC_FL_KEEP_SIZE", "FALLOC_FL_ZERO_RANGE", "FALLOC_FL_KEEP_SIZE"), w.size(), 1+w.size())
	case 10:
		w.do("flock %s %s", f, w.one("LOCK_EX|LOCK_NB", "LOCK_SH|LOCK_NB", "LOCK_UN"))
	case 11:
		w.do("lock %s %s %s SEEK_SET %d %d", f, w.one("F_SETLK", "F_OFD_SETLK"), w.one("F_WRLCK", "F_WRLCK", "F_RDLCK", "F_UNLCK"), w.IntN(4), w.IntN(4))
	default:
		w.do("close %s", f)
		w.open = slices.DeleteFunc(w.open, func(g string) bool { return f == g })
	}
}

func (w *walk) openFile() {
	w.count++
	f := fmt.Sprint("f", w.count)
	flags := w.one("O_RDWR", "O_RDWR", "O_RDONLY", "O_WRONLY")
	for _, f := range []struct {
		flag  string
		often int
	}{{"O_CREAT", 2}, {"O_EXCL", 10}, {"O_TRUNC", 6}, {"O_APPEND", 4}, {"O_NOFOLLOW", 12}, {"O_DSYNC", 8}} {
		if w.IntN(f.often) == 0 {
			flags += "|" + f.flag
		}
	}
	w.do("%s=open %s %s 0644", f, w.name(), flags)
	w.open = append(w.open, f)
}

func (w *walk) names() {
	switch w.IntN(16) {
	case 0, 1:
		w.do("unlink %s", w.name())
	case 2, 3:
		w.do("rename %s %s", w.name(), w.name())
	case 4:
		w.do("link %s %s", w.name(), w.name())
	case 5:
		w.do("symlink %s %s", w.one("a", "d", "d/b", "nowhere"), w.name())
	case 6, 7:
		w.do("mkdir %s", w.one("d", "e", "d/e", "a"))
	case 8:
		w.do("rmdir %s", w.name())
	case 9:
		w.do("truncate %s %d", w.name(), w.size())
	case 10:
		w.do("stat %s", w.name())
	case 11:
		w.do("lstat %s", w.name())
	case 12:
		w.do("ls %s", w.one(".", "d", "e", "s", "d/e"))
	case 13:
		w.do("chmod %s %s", w.name(), w.one("0600", "0755", "0444"))
	default:
		w.do("cat %s", w.name())
	}
}

package command

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nvmecr/checkpoint"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
)

func TestWithoutRank(t *testing.T) {
	for _, tc := range []struct {
		name string
		rank int
		want string
	}{
		{"/melt.600.3", 3, "/melt.600.*"},
		{"/melt.3.600", 3, "/melt.*.600"},
		{"/melt.3.3", 3, "/melt.3.*"},
		{"/d3/state", 3, "/d3/state"},
		{"/state_rank00012.pt", 12, "/state_rank*.pt"},
		{"/state", 0, "/state"},
		{"/0", 0, "/*"},
		{"/99999999999999999999999", 0, "/99999999999999999999999"},
	} {
		assert.Equal(t, tc.want, withoutRank(tc.name, tc.rank), tc.name)
	}
}

// TestNewest checks that a checkpoint which one rank lacks, or has not closed, is incomplete.
func TestNewest(t *testing.T) {
	type file struct {
		rank   int
		name   string
		closed bool
	}
	for _, tc := range []struct {
		name  string
		ranks int
		files []file // each newer than the one before; sorted by rank
		want  string
	}{
		{"one rank", 1, []file{{0, "/a", true}, {0, "/b", true}, {0, "/c", false}}, "newest complete: /b"},
		{"none", 2, []file{{0, "/a", false}}, "none of them is complete"},
		{"all", 2, []file{{0, "/a", true}, {0, "/b", true}, {1, "/a", true}, {1, "/b", false}}, "newest complete on all 2 ranks: /a"},
		{"numbers", 2, []file{{0, "/x.1.0", true}, {0, "/x.2.0", true}, {1, "/x.1.1", true}, {1, "/x.2.1", true}}, "newest complete on all 2 ranks: /x.2.*"},
		{"twice in one rank", 2, []file{{0, "/0", true}, {0, "/00", true}}, "newest complete: /00 of rank 0, none on all ranks"},
		{"a job script beside ranks", 2, []file{{0, "/a", true}, {1, "/a", true}, {parttable.Singleton, "/log", true}}, "newest complete on all 2 ranks: /a"},
		{"a job script beside one rank", 2, []file{{1, "/a", true}, {parttable.Singleton, "/a", true}}, "newest complete: /a of rank 1, none on all ranks"},
		{"a job script alone", 2, []file{{parttable.Singleton, "/log", true}}, "newest complete: /log"},
		{"for a terminal", 1, []file{{0, "/\x1b", true}}, `newest complete: "/\x1b"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			begin := time.Now()
			f := &found{ranks: tc.ranks, shared: map[string]*complete{}}
			for i, x := range tc.files {
				at := begin.Add(time.Duration(i+1) * time.Second)
				f.add(x.rank, x.name, microfs.Attr{Size: 1, Ctime: at, Mtime: at, Closed: x.closed}, begin)
			}
			f.add(0, "/before", microfs.Attr{Ctime: begin.Add(-1), Mtime: begin.Add(-1), Closed: true}, begin)
			assert.Equal(t, len(tc.files), f.files)
			assert.Equal(t, tc.want, f.newest())
		})
	}
}

// TestCost checks the line about the cost of a run's checkpoints.
func TestCost(t *testing.T) {
	begin := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	run := func(checkpoints int, pause time.Duration) *found {
		f := &found{job: checkpoint.Job{Ranks: 2, Tree: true}}
		for k := range checkpoints {
			at := begin.Add(time.Duration(k+1) * pause)
			for rank := range 2 {
				f.tree = append(f.tree, checkpoint.File{Rank: rank, Path: fmt.Sprintf("/melt.%d.%d", 100*(k+1), rank), Size: 1000, Closed: true, Created: at, Modified: at.Add(time.Second)})
			}
		}
		return f
	}
	for _, c := range []struct {
		name string
		f    *found
		mtbf string
		want string
	}{
		{"nothing known", nil, "24h", ""},
		{"files of ranks", &found{}, "24h", ""},
		{"too few", run(2, time.Minute), "24h", ""},
		{"without failures", run(3, 100*time.Second), "", "nvmecr: a checkpoint of melt.{step}.* takes 1s, one in 1m40s: 1.00% of the time"},
		{"with failures", run(3, 100*time.Second), "24h", "nvmecr: a checkpoint of melt.{step}.* takes 1s, one in 1m40s: 1.00% of the time; with failures 1.13% is lost, with one in 6m56s it would be 0.55%"},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, c.f.cost(c.mtbf, begin)) })
	}
	assert.Empty(t, run(3, 100*time.Millisecond).cost("24h", begin), "they overlap")
	assert.Empty(t, run(3, time.Minute).cost("", begin.Add(time.Hour)), "they are of an earlier run")
}

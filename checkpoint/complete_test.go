package checkpoint

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMissing checks what sets lack.
func TestMissing(t *testing.T) {
	two := []string{"200", "400"}
	for name, c := range map[string]struct {
		lines   []string
		drop    string // words "RANK:PATH": files that a crash prevents
		open    string // files that a crash leaves open
		pattern string
		ranks   int
		writers []int
		tree    bool
		sizes   map[string]int      // how many ranks the job has from the first file of a step on
		want    map[string][]string // missing parts by set; other sets are complete
	}{
		"all there": {lines: job(3, two, lammps)},
		"one is open": {lines: job(3, two, lammps), open: "1:melt.400.1",
			want: map[string][]string{"400": {"melt.400.1 of rank 1 was not closed"}}},
		"an older one is open": {lines: job(3, two, lammps), open: "1:melt.200.1",
			want: map[string][]string{"200": {"melt.200.1 of rank 1 was not closed"}}},
		"a rank is missing": {lines: job(3, two, lammps), drop: "2:melt.400.2",
			want: map[string][]string{"400": {"melt.400.2 of rank 2 is not there"}}},
		"two ranks are": {lines: job(3, two, lammps), drop: "0:melt.400.0 0:melt.400.base 2:melt.400.2",
			want: map[string][]string{"400": {"melt.400.0 of rank 0 is not there", "melt.400.base of rank 0 is not there", "melt.400.2 of rank 2 is not there"}}},
		"a file of a rank is missing": {lines: job(3, two, lammps), drop: "0:melt.400.base",
			want: map[string][]string{"400": {"melt.400.base of rank 0 is not there"}}},
		"a rank is missing in the first set": {lines: job(3, two[:1], lammps), drop: "2:melt.200.2",
			want: map[string][]string{"200": {"rank 2 has no file of it"}}},
		"and all but one are, whose number is in the name": {lines: job(3, two[:1], lammps), drop: "1:melt.200.1 2:melt.200.2",
			want: map[string][]string{"200": {"rank 1 has no file of it", "rank 2 has no file of it"}}},
		"a rank is missing in every set": {lines: job(3, two, lammps), drop: "2:melt.200.2 2:melt.400.2",
			want: map[string][]string{"200": {"rank 2 has no file of it"}, "400": {"rank 2 has no file of it"}}},
		"but others write for it": {lines: job(4, two, lammps), drop: "1:melt.200.1 1:melt.400.1 3:melt.200.3 3:melt.400.3", writers: []int{0, 2}},
		"one of which is missing": {lines: job(4, two, lammps), drop: "1:melt.200.1 1:melt.400.1 2:melt.400.2 3:melt.200.3 3:melt.400.3", writers: []int{0, 2},
			want: map[string][]string{"400": {"melt.400.2 of rank 2 is not there"}}},
		"rank 0 writes for all":         {lines: job(1, two, huggingFace), ranks: 4, pattern: "checkpoint-{step}/model*", want: nil},
		"rank 0 writes for all, once":   {lines: []string{"0 state_step400.cpt"}, ranks: 4},
		"rank 0, in an epoch 0":         {lines: []string{"0 epoch=0-step=400.ckpt"}, ranks: 4},
		"another rank writes for all":   {lines: []string{"3 step_400.h5"}, ranks: 5},
		"rank 0, with its number":       {lines: []string{"0 rank0/ckpt-100.pt"}, ranks: 2, want: map[string][]string{"100": {"rank 1 has no file of it"}}},
		"rank 3, with that of a suffix": {lines: []string{"3 step_400.v3"}, ranks: 5},
		"a job script writes":           {lines: []string{"-1 step_400.pt", "-1 step_500.pt"}, ranks: 5},
		"an input at the first step":    {lines: append(job(2, []string{"0", "200", "400", "600"}, lammps), "0 melt.0.input")},
		"an epoch with each step": {lines: []string{"0 epoch=0-step=400.ckpt", "0 epoch=1-step=800.ckpt", "0 epoch=1-step=800.opt"},
			want: map[string][]string{"400": {"epoch=*-step=400.opt of rank 0 is not there"}}},
		"names that differ each time": {lines: append(job(2, []string{"0", "200", "400"}, lammps), "0 melt.0.x71", "0 melt.200.x72", "0 melt.400.x73")},
		"a torn set does not lower what is expected": {lines: job(3, []string{"100", "200", "300"}, lammps), drop: "2:melt.100.2 0:melt.100.base 2:melt.300.2 0:melt.300.base",
			want: map[string][]string{
				"100": {"melt.100.base of rank 0 is not there", "melt.100.2 of rank 2 is not there"},
				"300": {"melt.300.base of rank 0 is not there", "melt.300.2 of rank 2 is not there"}}},
		"a file that one other lacks, too": {lines: job(2, []string{"100", "200", "300", "400"}, lammps), drop: "0:melt.100.base 0:melt.400.base",
			want: map[string][]string{"100": {"melt.100.base of rank 0 is not there"}, "400": {"melt.400.base of rank 0 is not there"}}},
		"a set that was cut short has no vote": {lines: job(2, []string{"100", "200", "300"}, lammps), drop: "0:melt.100.base 0:melt.300.base", open: "0:melt.100.0",
			want: map[string][]string{
				"100": {"melt.100.0 of rank 0 was not closed"},
				"300": {"melt.300.base of rank 0 is not there"}}},
		"of two shards one": {lines: []string{"0 step_1/model_00002-of-00002.pt"}, ranks: 3,
			want: map[string][]string{"1": {"step_1/model_00001-of-00002.pt is not there"}}},
		"counted from 0": {lines: []string{"0 step_1/model_00-of-12.pt", "0 step_1/model_02-of-12.pt"},
			want: map[string][]string{"1": {"step_1/model_01-of-12.pt is not there"}}},
		"shards of all ranks": {lines: each(8, two, "step_STEP/model_0000RANK-of-00008.pt"), drop: "3:step_400/model_00003-of-00008.pt",
			want: map[string][]string{"400": {"step_400/model_00003-of-00008.pt of rank 3 is not there"}}},
		"shards without end":           {lines: []string{"0 step_1/model_1-of-99999999999999999999.pt"}},
		"torch.distributed.checkpoint": {lines: job(4, two, dcp)},
		"without metadata": {lines: job(4, two[:1], dcp), drop: "0:step-200/.metadata",
			want: map[string][]string{"200": {"step-200/.metadata is not there"}}},
		"without metadata, again": {lines: job(4, two, dcp), drop: "0:step-400/.metadata",
			want: map[string][]string{"400": {"step-400/.metadata of rank 0 is not there"}}},
		"each with its metadata": {lines: append(job(2, two[:1], dcp), "0 step-200/__0.metadata", "1 step-200/__1.metadata"), drop: "0:step-200/.metadata"},
		"named": {lines: []string{"0 last/a.pt", "1 last/a.pt", "0 best/a.pt"}, pattern: "{name}/*",
			want: map[string][]string{"best": {"best/a.pt of rank 1 is not there"}}},
		"a tree": {lines: job(3, two, lammps), tree: true},
		"a tree, a rank is missing in the first set": {lines: job(4, two[:1], lammps), drop: "2:melt.200.2", tree: true,
			want: map[string][]string{"200": {"rank 2 has no file of it"}}},
		"a tree, a file is missing, whoever wrote it before": {lines: []string{"0 melt.200.0", "1 melt.200.1", "1 melt.400.0", "0 melt.600.0", "1 melt.600.1"}, tree: true,
			want: map[string][]string{"400": {"melt.400.1 is not there", "rank 0 has no file of it"}}},
		"a tree, other ranks write the same files": {lines: []string{"0 melt.200.0", "1 melt.200.1", "1 melt.400.0", "0 melt.400.1"}, tree: true},
		"a tree, one shared file":                  {lines: []string{"-1 out_200.h5", "-1 out_400.h5"}, ranks: 4, tree: true},
		"a tree, a shared file, and one of each":   {lines: append(job(2, two, lammps), "-1 melt.200.all", "-1 melt.400.all"), tree: true},
		"a tree, a shared file without those of a rank": {lines: append(job(3, two[:1], lammps), "-1 melt.200.all"), drop: "2:melt.200.2", tree: true,
			want: map[string][]string{"200": {"rank 2 has no file of it"}}},
		"a tree, rank 0 writes for all":       {lines: []string{"0 state_step400.cpt", "0 state_step800.cpt"}, ranks: 4, tree: true},
		"a tree, another rank writes for all": {lines: []string{"0 state_step400.cpt", "0 state_step800.cpt", "2 state_step900.cpt"}, ranks: 4, tree: true},
		"a tree, another rank writes for all, less": {lines: []string{"0 s_4/a.pt", "0 s_4/b.pt", "0 s_8/a.pt", "0 s_8/b.pt", "2 s_9/a.pt"}, ranks: 4, tree: true,
			want: map[string][]string{"9": {"s_9/b.pt is not there"}}},
		"a tree, one of two writes for all, and then both": {lines: []string{"0 s_4/a.pt", "1 s_8/a.pt", "0 s_9/a.pt", "1 s_9/b.pt"}, ranks: 2, tree: true,
			want: map[string][]string{"4": {"s_4/b.pt is not there", "rank 1 has no file of it"}, "8": {"s_8/b.pt is not there", "rank 0 has no file of it"}}},
		"a tree, node leaders": {lines: job(4, two, lammps), drop: "1:melt.200.1 1:melt.400.1 3:melt.200.3 3:melt.400.3", writers: []int{0, 2}, tree: true},
		"a tree, fewer ranks go on": {lines: append(job(4, two, lammps), job(2, []string{"600", "800"}, lammps)...), ranks: 4, tree: true,
			sizes: map[string]int{"200": 4, "600": 2}},
		"a tree, fewer ranks, one missing": {lines: append(job(4, two, lammps), job(2, []string{"600", "800"}, lammps)...), drop: "1:melt.800.1", ranks: 4, tree: true,
			sizes: map[string]int{"200": 4, "600": 2}, want: map[string][]string{"800": {"melt.800.1 is not there", "rank 1 has no file of it"}}},
		"a tree, fewer ranks after one that was cut short": {lines: append(job(4, two, lammps), job(2, []string{"600"}, lammps)...), drop: "2:melt.400.2 3:melt.400.3", ranks: 4, tree: true,
			sizes: map[string]int{"600": 2}, want: map[string][]string{"400": {"melt.400.2 is not there", "melt.400.3 is not there", "rank 2 has no file of it", "rank 3 has no file of it"}}},
		"a tree, a single process goes on": {lines: append(job(2, two, lammps), "-1 melt.600.0", "-1 melt.600.base"), ranks: 2, tree: true},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := c.ranks
			var all []File
			var sizes []Size
			for _, f := range files(t, c.lines...) {
				if c.ranks == 0 {
					ranks = max(ranks, f.Rank+1)
				}
				id := Part{Rank: f.Rank, Path: f.Path}
				if among(c.drop, id) {
					continue
				}
				f.Closed = !among(c.open, id)
				all = append(all, f)
				for step, n := range c.sizes {
					if strings.Contains(f.Path, step) {
						sizes = append(sizes, Size{f.Created, n})
						delete(c.sizes, step)
					}
				}
			}
			list, err := Find(all, c.pattern, Job{Ranks: ranks, Writers: c.writers, Tree: c.tree, Sizes: sizes})
			require.NoError(t, err)
			require.Len(t, list, 1)
			var complete []string
			for _, s := range list[0].Sets {
				var missing []string
				for _, p := range s.Missing {
					missing = append(missing, p.String())
				}
				assert.Equal(t, c.want[s.Name], missing, s.Name)
				if len(c.want[s.Name]) == 0 {
					complete = append(complete, s.Name)
				}
			}
			newest, ok := list[0].Newest()
			require.Equal(t, len(complete) > 0, ok)
			if ok {
				assert.Equal(t, complete[len(complete)-1], newest.Name)
			}
		})
	}
}

// among reports whether words "RANK:PATH RANK:PATH ..." contain the file.
func among(words string, p Part) bool {
	return slices.ContainsFunc(strings.Fields(words), func(w string) bool {
		rank, path, _ := strings.Cut(w, ":")
		return p.Rank == int(rank[0]-'0') && p.Path == "/"+path
	})
}

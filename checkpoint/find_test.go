package checkpoint

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// files returns the files of lines "RANK PATH", with "open" behind an unclosed file. Each is a second younger than
// the one before.
func files(t *testing.T, lines ...string) (list []File) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for i, l := range lines {
		w := strings.Fields(l)
		rank, err := strconv.Atoi(w[0])
		require.NoError(t, err)
		at := start.Add(time.Duration(i) * time.Second)
		list = append(list, File{Rank: rank, Path: "/" + w[1], Size: 10, Created: at, Modified: at, Closed: len(w) < 3})
	}
	return list
}

// job returns lines of checkpoints; names returns the file names of a rank.
func job(ranks int, steps []string, names func(step string, rank int) []string) (lines []string) {
	for _, s := range steps {
		for r := range ranks {
			for _, n := range names(s, r) {
				lines = append(lines, fmt.Sprint(r, " ", n))
			}
		}
	}
	return lines
}

// each is job with one file for each rank.
func each(ranks int, steps []string, format string) []string {
	return job(ranks, steps, func(step string, rank int) []string {
		return []string{strings.NewReplacer("STEP", step, "RANK", fmt.Sprint(rank), "0RR", fmt.Sprintf("%03d", rank)).Replace(format)}
	})
}

func lammps(step string, rank int) []string {
	list := []string{fmt.Sprintf("melt.%s.%d", step, rank)}
	if rank == 0 {
		list = append(list, "melt."+step+".base")
	}
	return list
}

func dcp(step string, rank int) []string {
	list := []string{fmt.Sprintf("step-%s/__%d_0.distcp", step, rank)}
	if rank == 0 {
		list = append(list, "step-"+step+"/.metadata")
	}
	return list
}

func deepspeed(step string, rank int) []string {
	list := []string{fmt.Sprintf("global_step%s/zero_pp_rank_%d_mp_rank_00_optim_states.pt", step, rank)}
	if rank == 0 {
		list = append(list, "global_step"+step+"/mp_rank_00_model_states.pt", "latest")
	}
	return list
}

func huggingFace(step string, rank int) []string {
	list := []string{fmt.Sprintf("checkpoint-%s/rng_state_%d.pth", step, rank)}
	if rank == 0 {
		for k := 1; k <= 3; k++ {
			list = append(list, fmt.Sprintf("checkpoint-%s/model-%05d-of-00003.safetensors", step, k))
		}
		list = append(list, "checkpoint-"+step+"/trainer_state.json", "runs/Nov24_10-11-12_node7/events.out.tfevents.1700000"+step+".node7.1")
	}
	return list
}

// program describes the files of an application.
type program struct {
	lines   []string
	pattern string
	steps   []string
}

func (p *program) ranks(t *testing.T) (ranks int) {
	for _, f := range files(t, p.lines...) {
		ranks = max(ranks, f.Rank+1)
	}
	return ranks
}

func programs() map[string]program {
	steps := []string{"0", "5", "100", "1000"}
	return map[string]program{
		"LAMMPS":                            {job(4, steps, lammps), "melt.{step}.*", steps},
		"LAMMPS, one set":                   {job(4, steps[2:3], lammps), "melt.{step}.*", steps[2:3]},
		"LAMMPS, many ranks":                {job(200, steps, lammps), "melt.{step}.*", steps},
		"GROMACS":                           {[]string{"0 state.cpt", "0 state_prev.cpt", "0 state_step400.cpt", "0 state_step800.cpt", "0 traj.part0002.trr"}, "state_step{step}.cpt", []string{"400", "800"}},
		"HDF5":                              {each(2, []string{"0011", "0012"}, "out_STEP.h5"), "out_{step}.h5", []string{"0011", "0012"}},
		"HDF5, in a directory with a digit": {each(2, []string{"0011", "0012"}, "run2/h2o_STEP.h5"), "run2/h2o_{step}.h5", []string{"0011", "0012"}},
		"CoMD-like":                         {each(3, []string{"000100", "000200"}, "CoMD.STEP.00RANK.chk"), "CoMD.{step}.*", []string{"000100", "000200"}},
		"CoMD-like, words":                  {each(3, []string{"000100", "000200"}, "comd_rank0RR_step_STEP.chk"), "comd_rank*_step_{step}.chk", []string{"000100", "000200"}},
		"rank in front":                     {each(12, steps, "heat.RANK.STEP"), "heat.*.{step}", steps},
		"rank behind a word":                {each(12, steps, "ckpt_0RR_STEP"), "ckpt_*_{step}", steps},
		"PyTorch":                           {each(4, steps, "ckpt-STEP/rankRANK.pt"), "ckpt-{step}/**", steps},
		"PyTorch, shards":                   {each(3, steps, "step_STEP/model_0RR-of-003.pt"), "step_{step}/**", steps},
		"PyTorch, epochs":                   {[]string{"0 epoch_1.pt", "0 epoch_2.pt"}, "epoch_{step}.pt", []string{"1", "2"}},
		"distributed.checkpoint":            {job(4, steps, dcp), "step-{step}/**", steps},
		"DeepSpeed":                         {job(4, steps, deepspeed), "global_step{step}/**", steps},
		"Megatron":                          {each(4, []string{"0000100", "0000200"}, "iter_STEP/mp_rank_0RANK/model_optim_rng.pt"), "iter_{step}/**", []string{"0000100", "0000200"}},
		"NVRx":                              {each(4, []string{"0000100", "0000200"}, "session/RANK/iter_STEP_RANK_local.pt"), "session/*/iter_{step}*", []string{"0000100", "0000200"}},
		"Hugging Face":                      {job(2, steps, huggingFace), "checkpoint-{step}/**", steps},
		"Lightning":                         {[]string{"0 epoch=0-step=400.ckpt", "0 epoch=1-step=800.ckpt", "0 last.ckpt"}, "epoch=*-step={step}.ckpt", []string{"400", "800"}},
		"OpenFOAM":                          {append(each(3, []string{"0", "0.005", "0.01", "0.1", "2"}, "processorRANK/STEP/U"), "0 processor0/constant/polyMesh/points"), "processor*/{step}/U", []string{"0", "0.005", "0.01", "0.1", "2"}},
		"AMReX":                             {each(3, []string{"00100", "00200"}, "chkSTEP/Level_0/Cell_D_0000RANK"), "chk{step}/**", []string{"00100", "00200"}},
		"AMReX's plots":                     {each(3, []string{"00100", "00200"}, "plotSTEP/Level_0/Cell_D_0000RANK"), "plot{step}/**", []string{"00100", "00200"}},
		"Nek5000":                           {each(1, []string{"00012", "00013"}, "A0RANK/blah0.fSTEP"), "A*/blah*.f{step}", []string{"00012", "00013"}},
		"directories of steps":              {each(3, steps, "STEP/RANK.pt"), "{step}/**", steps},
		"directories with numbered files":   {job(2, steps, func(step string, _ int) []string { return []string{step + "/rho_7.dat", step + "/rho_8.dat"} }), "{step}/**", steps},
		"Nek5000, of a case with a digit":   {each(2, []string{"00012", "00013"}, "blah7.fSTEP"), "blah7.f{step}", []string{"00012", "00013"}},
		"directories of ranks":              {each(3, steps, "RANK/out_STEP.h5"), "*/out_{step}.h5", steps},
		"names that are hostile":            {[]string{"0 a*b{step}_12", "0 a*b{step}_13"}, "a?b?step}_{step}", []string{"12", "13"}},
	}
}

// seeded returns random numbers and logs the seed.
func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func shuffle[T any](r *rand.Rand, list []T) {
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

// TestWithoutPattern finds the steps in file names of applications.
func TestWithoutPattern(t *testing.T) {
	for name, c := range programs() {
		t.Run(name, func(t *testing.T) {
			all, ranks := files(t, c.lines...), c.ranks(t)
			shuffle(seeded(t), all)
			list, err := Find(all, "", Job{Ranks: ranks})
			require.NoError(t, err)
			s, err := Choose(list)
			require.NoError(t, err)
			assert.Equal(t, c.pattern, s.Pattern)
			assert.Equal(t, c.steps, names(s.Sets))
			newest, ok := s.Newest()
			require.True(t, ok, "%v", s.Sets)
			assert.Equal(t, c.steps[len(c.steps)-1], newest.Name)

			// The suggested pattern finds the same files.
			again, err := Find(all, s.Pattern, Job{Ranks: ranks})
			require.NoError(t, err)
			require.Len(t, again, 1)
			assert.Equal(t, s.Sets, again[0].Sets)
		})
	}
}

// TestOneFileOfEachRank: if each rank overwrites a single file, the numbers in the names are ranks, and no file is an
// older checkpoint of another rank. A single rank may count steps. Fortran programs count ranks from 1.
func TestOneFileOfEachRank(t *testing.T) {
	for _, format := range []string{"f%d", "ckpt.%d", "restart/%d", "out_%03d.h5"} {
		for first := range 2 {
			var lines []string
			for rank := range 3 {
				lines = append(lines, fmt.Sprintf("%d "+format, rank, first+rank))
				all, ranks := files(t, lines...), rank+1
				for _, tree := range []bool{false, true} {
					list, err := Find(all, "", Job{Ranks: ranks, Tree: tree})
					require.NoError(t, err)
					assert.Len(t, list, map[bool]int{true: 1}[ranks == 1], "%s, %d ranks from %d", format, ranks, first)
				}
			}
		}
	}
}

// TestRanksFromOne: the number of the rank stands in front of that of the step, and counts ranks from 1.
func TestRanksFromOne(t *testing.T) {
	var lines []string
	for _, step := range []int{1, 2, 10} {
		for rank := range 3 {
			lines = append(lines, fmt.Sprintf("%d restart_%04d_%06d", rank, rank+1, step))
		}
	}
	for _, tree := range []bool{false, true} {
		list, err := Find(files(t, lines...), "", Job{Ranks: 3, Tree: tree})
		require.NoError(t, err)
		require.Len(t, list, 1)
		assert.Equal(t, "restart_*_{step}", list[0].Pattern)
		assert.Equal(t, []string{"000001", "000002", "000010"}, names(list[0].Sets))
	}
}

// TestTorn removes, or leaves open, each file of the newest checkpoint of an application: the checkpoint is
// incomplete.
func TestTorn(t *testing.T) {
	for name, c := range programs() {
		if len(c.steps) < 2 {
			continue // the expected files of the first set are unknown
		}
		t.Run(name, func(t *testing.T) {
			all, job := files(t, c.lines...), Job{Ranks: c.ranks(t)}
			list, err := Find(all, c.pattern, job)
			require.NoError(t, err)
			newest, before := list[0].Sets[len(c.steps)-1], list[0].Sets[len(c.steps)-2]
			some := slices.Clone(newest.Files)
			shuffle(seeded(t), some)
			for _, f := range some[:min(len(some), 20)] {
				i := slices.Index(all, f)
				torn := slices.Clone(all)
				torn[i].Closed = false
				for _, torn := range [][]File{torn, slices.Delete(slices.Clone(all), i, i+1)} {
					list, err := Find(torn, c.pattern, job)
					require.NoError(t, err)
					s, ok := list[0].Newest()
					require.True(t, ok, f.Path)
					require.Equal(t, before.Name, s.Name, f.Path)
				}
			}
		})
	}
}

// FuzzFind checks that each file matching the suggested pattern is in the series exactly once.
func FuzzFind(f *testing.F) {
	f.Add("melt.400.0\nmelt.400.base\nstep-400/.metadata\n1-of-2\nepoch=0-step=400.ckpt", "melt.{step}.*", 2)
	f.Add("0.5/x\n0.5\n//\n.h5\na9.h5\n\xff1\n", "**{name}?", 0)
	f.Fuzz(func(t *testing.T, paths, text string, ranks int) {
		if len(paths)+len(text) > 4096 {
			return // PATH_MAX
		}
		var all []File
		for i, p := range strings.Split(paths, "\n") {
			all = append(all, File{Rank: i % 3, Path: "/" + p, Closed: i%5 > 0})
		}
		if ranks = ranks % 100; ranks < 0 {
			ranks = 0
		}
		for _, text := range []string{"", text} {
			list, err := Find(all, text, Job{Ranks: ranks})
			if err != nil {
				require.ErrorIs(t, err, ErrPattern)
				continue
			}
			for _, s := range list {
				require.NotEmpty(t, s.Sets)
				for _, set := range s.Sets {
					require.NotEmpty(t, set.Files)
				}
				if _, err := parsePattern(s.Pattern); utf8.ValidString(paths) {
					require.NoError(t, err)
				}
			}
		}
	})
}

func names(sets []Set) (list []string) {
	for i := range sets {
		list = append(list, sets[i].Name)
	}
	return list
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		lines string
		want  string // the pattern, or the error
	}{
		{"", ErrNone.Error()},
		{"0 state.cpt,0 log,0 data.h5,0 part0003,0 3d,0 a-of-2", ErrNone.Error()},
		{"0 melt.1.0,0 log.7", ErrSeveral.Error() + ": log.{step}, melt.{step}.0"},
		{"0 step_1.pt,0 log.7", "step_{step}.pt"},
		{"0 step_1.pt,0 ckpt_7,0 log.7", ErrSeveral.Error() + ": ckpt_{step}, step_{step}.pt"},
		{"0 run1/x.1,0 run2/x.1", ErrSeveral.Error() + ": run1/x.{step}, run2/x.{step}"},
		{"0 a.1,0 b.1,0 c.1,0 d.1,0 e.1,0 f.1,0 g.1", ErrSeveral.Error() + ": a.{step}, b.{step}, c.{step}, d.{step}, e.{step}, and 2 more"},
		{"1 chk,1 ckpt-3f,1 ckpt-12", "ckpt-{step}"},
		{"0 out/x.1,-1 log1", "out/x.{step}"},
		{"-1 log1,-1 log2", "log{step}"},
	} {
		t.Run(c.lines, func(t *testing.T) {
			list, err := Find(files(t, strings.FieldsFunc(c.lines, func(r rune) bool { return r == ',' })...), "", Job{Ranks: 1})
			require.NoError(t, err)
			s, err := Choose(list)
			if err != nil {
				assert.EqualError(t, err, c.want)
				return
			}
			assert.Equal(t, c.want, s.Pattern)
		})
	}
}

// TestEvident checks which series are checkpoints beyond doubt.
func TestEvident(t *testing.T) {
	for _, c := range []struct{ lines, want string }{
		{"-1 input/mesh1.vtk,-1 input/mesh2.vtk,0 frame_1.png", ""},
		{"0 melt.1.0,1 melt.1.1,-1 mesh.1", "melt.{step}.*"},
		{"0 plt00100,1 plt00100,0 chk00100,1 chk00100", "chk{step}"},
		{"0 out/Step_1/x,0 a/ckpt-7,0 log.7", "a/ckpt-{step} out/Step_{step}/x"},
		{"-1 it_1/x", ""},
		{"0 it_1/x,-1 it_1/y", ""},
	} {
		t.Run(c.lines, func(t *testing.T) {
			list, err := Find(files(t, strings.Split(c.lines, ",")...), "", Job{Ranks: 2})
			require.NoError(t, err)
			var have []string
			for _, s := range Evident(list) {
				have = append(have, s.Pattern)
			}
			assert.Equal(t, c.want, strings.Join(have, " "))
		})
	}
}

func TestPattern(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          string // the text that distinguishes sets; "" if the path
	}{
		{"melt.{step}.*", "melt.400.0", "400"},
		{"/melt.{step}.*", "melt.400.base", "400"},
		{"melt.{step}.*", "melt.400", ""},
		{"melt.{step}.*", "a/melt.400.0", ""},
		{"melt.{step}.*", "melt.4x.0", ""},
		{"melt.{step}.*", "melt.400.0/x", ""},
		{"melt.{step}0", "melt.400", ""},
		{"**/melt.{step}.*", "a/b/melt.400.0", "400"},
		{"*{step}.h5", "out_0012.h5", "0012"},
		{"*_{step}_*", "a_1_2_3", "1"},
		{"*.*.{step}", "heat.3.50", "50"},
		{"ckpt-{step}/**", "ckpt-100/rank3.pt", "100"},
		{"ckpt-{step}/**", "ckpt-100/a/b.pt", "100"},
		{"ckpt-{step}/**", "ckpt-100", ""},
		{"ckpt-{step}/*", "ckpt-100/a/b.pt", ""},
		{"ckpt?{step}", "ckpt-100", "100"},
		{"ckpt?{step}", "cktp/100", ""},
		{"p*/{step}/U", "p3/0.005/U", "0.005"},
		{"x.{step}", "x.0.005", ""},
		{"a[b].{step}+", "a[b].7+", "7"},
		{"{x}{step}", "{x}7", "7"},
		{"{name}.cpt", "state_prev.cpt", "state_prev"},
		{"{name}.cpt", "a/state.cpt", ""},
		{"{name}/**", "last/model.pt", "last"},
		{"*/{name}/x", "a/b/x", "b"},
		{"ü{step}", "ü7", "7"},
		{"?{step}", "ü7", "7"},
	} {
		t.Run(c.pattern+" "+c.path, func(t *testing.T) {
			p, err := parsePattern(c.pattern)
			require.NoError(t, err)
			at, ok := p.find("/" + c.path)
			require.Equal(t, c.want != "", ok)
			if ok {
				assert.Equal(t, c.want, at.of("/"+c.path))
			}
		})
	}
	for _, bad := range []string{"x", "melt.*", "{step}{step}", "{step}.{name}", "{Step}", "{step}\xff"} {
		_, err := Find(nil, bad, Job{})
		assert.ErrorIs(t, err, ErrPattern, bad)
	}
}

func TestOrder(t *testing.T) {
	want := []string{"0", "0.005", "0.01", "2", "10", "010.5", "9999999999999999999999", "10000000000000000000000"}
	all := slices.Clone(want)
	shuffle(seeded(t), all)
	slices.SortFunc(all, func(a, b string) int { return compareNumbers(plain(a), plain(b)) })
	assert.Equal(t, want, all)

	list, err := Find(files(t, "0 state_prev.cpt", "0 state.cpt", "0 new.cpt open"), "{name}.cpt", Job{Ranks: 4})
	require.NoError(t, err)
	assert.Equal(t, []string{"state_prev", "state", "new"}, names(list[0].Sets), "names by time")
	newest, ok := list[0].Newest()
	require.True(t, ok)
	assert.Equal(t, "state", newest.Name)
}

// TestSpelling checks that leading zeros do not make a different step.
func TestSpelling(t *testing.T) {
	list, err := Find(files(t, "0 s_007.pt", "1 s_7.pt", "0 s_08.pt", "1 s_08.pt"), "s_{step}.pt", Job{Ranks: 2})
	require.NoError(t, err)
	assert.Equal(t, []string{"7", "08"}, names(list[0].Sets))
	assert.True(t, list[0].Sets[0].Complete())
}

func TestOfASet(t *testing.T) {
	all := files(t, "1 s.1", "0 s.1", "0 s.1.more")
	list, err := Find(all, "s.{step}*", Job{Ranks: 2})
	require.NoError(t, err)
	s := &list[0].Sets[0]
	assert.EqualValues(t, 30, s.Size())
	assert.Equal(t, []int{0, 1}, s.Ranks())
	assert.Equal(t, all[0].Created, s.Begun())
	assert.Equal(t, all[2].Modified, s.Ended())
	assert.Equal(t, "/s.1", s.Files[0].Path)
	list, err = Find(all, "x.{step}", Job{Ranks: 2})
	require.NoError(t, err)
	assert.Empty(t, list)
}

// TestStepBack checks which set is the newest in a job that has gone back to an earlier step.
func TestStepBack(t *testing.T) {
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	file := func(name string, size int64, minute int) File {
		return File{Path: "/" + name, Size: size, Modified: begin.Add(time.Duration(minute) * time.Minute), Closed: true}
	}
	for _, c := range []struct {
		name      string
		files     []File
		want      []string // oldest first
		overtaken string
	}{
		{"goes on", []File{file("s.9", 10, 1), file("s.10", 10, 2)}, []string{"9", "10"}, ""},
		{"at once", []File{file("s.10", 10, 1), file("s.9", 10, 1)}, []string{"9", "10"}, ""},
		{"goes back", []File{file("s.300", 10, 1), file("s.500", 10, 2), file("s.310", 10, 3)}, []string{"300", "500", "310"}, "500"},
		{"a file is added later", []File{file("s.300/a", 10, 1), file("s.500/a", 10, 2), file("s.300/score", 2, 3)}, []string{"300", "500"}, ""},
		{"a file is older", []File{file("s.300/a", 10, 1), file("s.500/a", 10, 2), file("s.500/config", 2, -9)}, []string{"300", "500"}, ""},
		{"most bytes are shared", []File{file("s.9/a", 10, 1), file("s.9/b", 2, 2), file("s.10/a", 10, 1), file("s.10/b", 2, 3)}, []string{"9", "10"}, ""},
		{"without bytes", []File{file("s.500", 0, 1), file("s.300", 0, 2)}, []string{"500", "300"}, "500"},
		{"a clock is wrong", []File{file("s.300", 10, 1<<27), file("s.500", 10, 1<<26), file("s.400", 10, 1)}, []string{"300", "400", "500"}, ""},
		{"incomplete", []File{file("s.500", 10, 1), file("s.310", 10, 2), {Path: "/s.320", Modified: begin.Add(3 * time.Minute)}}, []string{"500", "310", "320"}, "500"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, err := Find(c.files, "s.{step}**", Job{Ranks: 1, Tree: true})
			require.NoError(t, err)
			assert.Equal(t, c.want, names(list[0].Sets))
			set, ok := list[0].Overtaken()
			assert.Equal(t, c.overtaken != "", ok)
			if ok {
				assert.Equal(t, c.overtaken, set.Name)
			}
		})
	}
}

// TestNamedShared checks which named set is the newest where most bytes are in files that were copied with their times.
func TestNamedShared(t *testing.T) {
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var files []File
	for i, name := range []string{"first", "second", "best"} {
		files = append(files, File{Path: "/" + name + "/base", Size: 10, Modified: begin, Closed: true},
			File{Path: "/" + name + "/adapter", Size: 2, Modified: begin.Add(time.Duration(i) * time.Minute), Closed: true})
	}
	list, err := Find(files, "{name}/*", Job{Ranks: 1, Tree: true})
	require.NoError(t, err)
	assert.Equal(t, []string{"first", "second", "best"}, names(list[0].Sets))
}

// TestUndecided checks a series in which some ranks have no files in any set: they may not write any.
func TestUndecided(t *testing.T) {
	for _, c := range []struct {
		lines string
		want  string // the set
	}{
		{"0 s.1.0,2 s.1.2", ""},
		{"0 s.1.0,2 s.1.2,0 s.2.0,2 s.2.2", "2"},
		{"0 s.1.0,2 s.1.2,0 s.2.0,2 s.2.2,0 s.3.0", ""},
		{"0 s.1.0,2 s.1.2,0 s.2.0,2 s.2.2,0 s.3.0 open", "2"},
		{"0 s.1.0,1 s.1.1,2 s.1.2,3 s.1.3,0 s.2.0,2 s.2.2,0 s.3.0,2 s.3.2", ""},
	} {
		for _, tree := range []bool{false, true} {
			list, err := Find(files(t, strings.Split(c.lines, ",")...), "s.{step}.*", Job{Ranks: 4, Tree: tree})
			require.NoError(t, err)
			set, ok := list[0].Undecided()
			assert.Equal(t, c.want != "", ok, c.lines)
			if ok {
				assert.Equal(t, c.want, set.Name, c.lines)
			}
		}
	}
}

// TestJoin: one pattern for what the patterns of one series match.
func TestJoin(t *testing.T) {
	for _, c := range [][3]string{
		{"ck.{step}.0", "ck.{step}.0", "ck.{step}.0"},
		{"ck.{step}.0", "ck.{step}.*", "ck.{step}.*"},
		{"ck.{step}.*", "ck.{step}", "ck.{step}*"},
		{"ck.{step}/a", "ck.{step}/b/c", "ck.{step}/**"},
		{"ck.{step}/**", "ck.{step}.0", "ck.{step}**"},
		{"ck.{step}**", "ck.{step}.0", "ck.{step}**"},
		{"{name}.pt", "{name}.pt", "{name}.pt"},
	} {
		a, b, want := c[0], c[1], c[2]
		require.Equal(t, Stem(a), Stem(b))
		assert.Equal(t, want, Join(a, b))
		assert.Equal(t, want, Join(b, a))
	}
	assert.NotEqual(t, Stem("{name}.pt"), Stem("{name}.h5"))
	assert.NotEqual(t, Stem("{step}.pt"), Stem("{name}.pt"))
}

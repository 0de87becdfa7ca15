package checkpoint

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// findMissing sets Missing of sets that jobs of one size have written. writers are the ranks that must have a part of each
// set.
func findMissing(sets []*Set, writers []int) {
	votes, whole := map[part]int{}, make([]bool, len(sets))
	voters := 0
	for i, s := range sets {
		if whole[i] = s.closed() && len(s.absent(writers)) == 0; whole[i] {
			voters++
			for _, p := range s.parts {
				votes[p]++
			}
		}
	}
	for i, s := range sets {
		have := map[part]bool{}
		for _, p := range s.parts {
			have[p] = true
		}
		others := voters
		if whole[i] {
			others--
		}
		var lacks []part
		for p, n := range votes {
			if !have[p] && 2*n > others {
				lacks = append(lacks, p)
			}
		}
		s.addMissing(lacks, writers)
	}
}

// addMissing sets Missing of one set. lacks are parts that other sets have and this one does not.
func (s *Set) addMissing(lacks []part, writers []int) {
	for _, f := range s.Files {
		if !f.Closed || f.Lost {
			s.Missing = append(s.Missing, Part{Rank: f.Rank, Path: f.Path, Open: !f.Closed, Lost: f.Lost})
		}
	}
	named, paths := map[int]bool{}, map[string]bool{}
	for _, p := range lacks {
		path := strings.Replace(p.path, stepPlace, s.Name, 1)
		named[p.rank], paths[path] = true, true
		s.Missing = append(s.Missing, Part{Rank: p.rank, Path: path})
	}
	for _, rank := range s.absent(writers) {
		if !named[rank] {
			s.Missing = append(s.Missing, Part{Rank: rank})
		}
	}
	for _, p := range append(s.shards(), s.metadata()...) {
		if !paths[p.Path] {
			s.Missing = append(s.Missing, p)
		}
	}
	slices.SortFunc(s.Missing, func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), strings.Compare(a.Path, b.Path))
	})
}

// sort orders the files.
func (s *Set) sort() {
	slices.SortFunc(s.Files, func(a, b File) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), strings.Compare(a.Path, b.Path))
	})
}

// closed reports whether all files are closed.
func (s *Set) closed() bool {
	return !slices.ContainsFunc(s.Files, func(f File) bool { return !f.Closed || f.Lost })
}

// absent returns the ranks, of the given ones, that have no file in the set.
func (s *Set) absent(ranks []int) (absent []int) {
	have := map[int]bool{}
	for _, f := range s.Files {
		have[f.Rank] = true
	}
	for _, r := range ranks {
		if !have[r] {
			absent = append(absent, r)
		}
	}
	return absent
}

// kOfN matches the numbers of a name like model_00003-of-00008.pt.
var kOfN = regexp.MustCompile(`([0-9]+)[-_.]?of[-_.]?([0-9]+)`)

// shards returns the parts that are missing by names of the form k-of-n, one for each such name.
func (s *Set) shards() (missing []Part) {
	type group struct{ before, behind string } // the text around k; behind includes n
	have, width, total := map[group]map[uint64]bool{}, map[group]int{}, map[group]uint64{}
	for _, f := range s.Files {
		m := kOfN.FindStringSubmatchIndex(f.Path)
		if m == nil {
			continue
		}
		k, errK := strconv.ParseUint(f.Path[m[2]:m[3]], 10, 63)
		n, errN := strconv.ParseUint(f.Path[m[4]:m[5]], 10, 63)
		if errK != nil || errN != nil {
			continue // not a number of shards
		}
		g := group{f.Path[:m[2]], f.Path[m[3]:]}
		if have[g] == nil {
			have[g] = map[uint64]bool{}
		}
		have[g][k], width[g], total[g] = true, m[3]-m[2], n
	}
	for g, ks := range have {
		if uint64(len(ks)) >= total[g] {
			continue
		}
		k := uint64(1) // numbers may begin at 0; then shard 0 may be the missing one, which does not matter
		for ks[k] {
			k++
		}
		text := strconv.FormatUint(k, 10)
		text = strings.Repeat("0", max(width[g]-len(text), 0)) + text
		missing = append(missing, Part{Rank: -1, Path: g.before + text + g.behind})
	}
	return missing
}

// metadata returns the file that torch.distributed.checkpoint writes last, if it is missing.
func (s *Set) metadata() (missing []Part) {
	parts, done := map[string]bool{}, map[string]bool{} // directories with *.distcp, and with .metadata
	for _, f := range s.Files {
		dir, name := path.Split(f.Path)
		switch {
		case strings.HasSuffix(name, ".metadata"):
			done[dir] = true
		case strings.HasSuffix(name, ".distcp"):
			parts[dir] = true
		}
	}
	for dir := range parts {
		if !done[dir] {
			missing = append(missing, Part{Rank: -1, Path: dir + ".metadata"})
		}
	}
	return missing
}

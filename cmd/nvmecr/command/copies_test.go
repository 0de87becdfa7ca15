package command

import (
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/drain"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// TestDomains checks that targets at one address are a failure domain, unless all are at one address.
func TestDomains(t *testing.T) {
	for _, c := range []struct{ addresses, want []string }{
		{[]string{"a", "b", "a"}, []string{"a", "b", "a"}},
		{[]string{"a", "a", "a"}, []string{"0", "1", "2"}},
		{[]string{"a"}, []string{"0"}},
		{nil, nil},
	} {
		var targets []nvmf.TransportID
		for i, a := range c.addresses {
			targets = append(targets, nvmf.TransportID{Transport: nvmf.TCP, Address: a, NSID: uint32(i + 1)})
		}
		assert.Equal(t, c.want, store.Domains(targets))
	}
}

// TestDepends checks the targets whose loss loses a file.
func TestDepends(t *testing.T) {
	on := map[int]int{0: 0, 1: 1, 2: 2, parttable.Singleton: 0}
	for _, c := range []struct {
		name string
		tree bool
		rank int
		want []int
	}{
		{"a rank's own files", false, 1, []int{1}},
		{"of job scripts", false, -1, []int{0}},
		{"of one rank, and the name", true, 2, []int{0, 2}},
		{"of several ranks", true, noRank, []int{0, 1, 2}},
		{"of a rank whose partition is not known", true, 7, []int{0, 1, 2}},
	} {
		o := &levelReader{}
		o.tree, o.targetOf = c.tree, on
		assert.Equal(t, c.want, o.dependencies(&drain.File{Rank: c.rank}), c.name)
	}
}

// TestCheckShards checks that too many shards for the failure domains are refused, with a suggestion.
func TestCheckShards(t *testing.T) {
	for _, c := range []struct {
		copies    config.Copies
		addresses []string
		fits      string // "": the requested number
	}{
		{"rs:2+1", []string{"a", "b", "c"}, ""},
		{"rs:2+1", []string{"a", "a", "a"}, ""},
		{"rs:2+1", []string{"a", "a", "b"}, "take --copies rs:1+1"},
		{"rs:4+2", []string{"a", "b", "c", "d", "a"}, "take --copies rs:2+2"},
		{"rs:2+3", []string{"a", "b", "c"}, "take --copies rs:1+2"},
		{"rs:4+2", []string{"a", "b"}, "take --copies rs:1+1"},
		{"partner", []string{"a", "b"}, ""},
	} {
		cfg := &config.Config{Copies: c.copies}
		for i, a := range c.addresses {
			cfg.Targets = append(cfg.Targets, nvmf.TransportID{Transport: nvmf.TCP, Address: a, NSID: uint32(i + 1)})
		}
		err := checkCopies(cfg)
		if c.fits == "" {
			require.NoError(t, err, c.copies)
			continue
		}
		require.ErrorContains(t, err, c.fits)
	}
}

// newAreas returns three copy areas in memory.
func newAreas(t *testing.T) []*drain.Level {
	areas := make([]*drain.Level, 3)
	for i := range areas {
		areas[i] = drain.OpenArea(newFS(t), fmt.Sprint("area ", i))
	}
	return areas
}

// newFS returns a file system in memory.
func newFS(t *testing.T) *microfs.FS {
	const size = 16 * nvmf.MiB
	dev, err := memdev.New(size, 4096, memdev.Options{})
	require.NoError(t, err)
	whole := microfs.Segment{Length: size}
	require.NoError(t, microfs.Format(t.Context(), dev, whole, microfs.FormatOptions{Generation: 1}))
	fs, err := microfs.Mount(t.Context(), dev, whole, microfs.Options{Generation: 1})
	require.NoError(t, err)
	return fs
}

// TestRetain checks that the newest checkpoints of each level are kept. A checkpoint that has lost parts of its copies does not count.
func TestRetain(t *testing.T) {
	areas := newAreas(t)
	put := func(name string, on ...int) {
		some := make([]*drain.Level, len(areas))
		for _, i := range on {
			some[i] = areas[i]
		}
		s := &drain.Set{Store: "s", Pattern: "ck.{step}", Name: name, Ranks: 1, Tree: true, Ended: time.Unix(1, 0),
			Files: []drain.File{{Path: "/ck." + name, Modified: time.Unix(1, 0)}}}
		_, err := drain.NewCopies(some, []string{"a", "b", "c"}, drain.Code{}).Put(t.Context(), s, emptyFiles{}, func(*drain.File) []int { return []int{0, 1, 2} }, drain.Options{})
		require.NoError(t, err)
	}
	names := func(c *drain.Copies) (list []string) {
		sets, err := c.Sets()
		require.NoError(t, err)
		for i := range sets {
			list = append(list, fmt.Sprint(sets[i].Name, " ", sets[i].Protected()))
		}
		slices.Sort(list)
		return list
	}
	put("1", 0, 1)
	put("2", 0, 1)
	put("9", 1, 2)
	left := drain.NewCopies(areas[:2], []string{"a", "b"}, drain.Code{}) // has only a part of 9
	require.Equal(t, []string{"1 true", "2 true", "9 false"}, names(left))
	o := &drainOptions{keep: 1}
	require.NoError(t, o.retain(left, "ck.{step}", nil))
	assert.Equal(t, []string{"2 true", "9 false"}, names(left))
	put("8", 0, 1)
	put("10", 0, 1)
	require.NoError(t, o.retain(left, "ck.{step}", nil))
	assert.Equal(t, []string{"10 true"}, names(left))

	put("5", 0, 1)
	put("6", 0, 1)
	sets, err := left.Sets()
	require.NoError(t, err)
	six := slices.IndexFunc(sets, func(s drain.Set) bool { return s.Name == "6" })
	require.NoError(t, o.retain(left, "ck.{step}", &sets[six]))
	assert.Equal(t, []string{"10 true", "6 true"}, names(left), "the last copied one stays")
}

// emptyFiles is a drain.Source.
type emptyFiles struct{ drain.Reader }

func (emptyFiles) Open(int, string) (drain.Reader, error) { return emptyFiles{}, nil }
func (emptyFiles) Refresh() error                         { return nil }
func (emptyFiles) Data(int64) (from, to int64, err error) { return 0, 0, io.EOF }
func (emptyFiles) Stat() (int64, time.Time, error)        { return 0, time.Unix(1, 0), nil }
func (emptyFiles) Close() error                           { return nil }

package command

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/drain"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

// TestDomains: what is at one address fails together, unless that is all there is.
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

// TestDepends: by the loss of which targets a file is lost.
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
		o.tree, o.on = c.tree, on
		assert.Equal(t, c.want, o.depends(&drain.File{Rank: c.rank}), c.name)
	}
}

// TestCheckShards: shards are refused where there are fewer failure domains, with what fits.
func TestCheckShards(t *testing.T) {
	for _, c := range []struct {
		copies    config.Copies
		addresses []string
		fits      string // "": what is asked for
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

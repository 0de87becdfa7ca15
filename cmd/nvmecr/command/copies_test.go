package command

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nvmecr/drain"
	"nvmecr/internal/parttable"
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
		assert.Equal(t, c.want, domains(targets))
	}
}

// TestDepends: by the loss of which targets a file is lost.
func TestDepends(t *testing.T) {
	on := map[int]int{0: 0, 1: 1, 2: 2, parttable.Solo: 0}
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

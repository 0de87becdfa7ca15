package slurm

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/balancer/site"
	"nvmecr/nvmf"
)

// TestCopiesApart checks that no node has so many targets of a job that its copies lack other nodes.
func TestCopiesApart(t *testing.T) {
	for _, tt := range []struct {
		request string
		targets []string // NAME:NODE:LOAD[:HEALTH]
		want    []string // names; none: the request can never be met
		setting string
	}{
		{"nvmf:2,copies", []string{"a:n1:0", "b:n1:0", "c:n2:9"}, []string{"a", "c"}, "NVMECR_COPIES=partner"},
		{"nvmf:2,copies", []string{"a:n1:0", "b:n1:0", "c:n2:9:failed"}, nil, ""},
		{"nvmf:2", []string{"a:n1:0", "b:n1:0", "c:n2:9"}, []string{"a", "b"}, "NVMECR_NAME=slurm-j1"},
		{"nvmf:3,copies=rs:2+1", []string{"a:n1:0", "b:n1:0", "c:n2:9", "d:n3:9"}, []string{"a", "c", "d"}, "NVMECR_COPIES=rs:2+1"},
		{"nvmf:3,copies=rs:2+1", []string{"a:n1:0", "b:n1:0", "c:n2:0", "d:n2:0"}, nil, ""},
		{"nvmf:1,copies-sync", []string{"a:n1:3", "b:n1:2", "c:n2:9"}, []string{"b", "c"}, "NVMECR_COPIES_SYNC=on"},
		{"nvmf:3,copies-sync", []string{"a:n1:0", "b:n1:0", "c:n2:9", "d:n3:9"}, []string{"a", "c", "d"}, "NVMECR_COPIES_SYNC=on"},
		{"nvmf:3,copies-sync", []string{"a:n1:0", "b:n1:0", "c:n2:0", "d:n2:0:degraded"}, []string{"a", "b", "c", "d"}, "NVMECR_COPIES_SYNC=on"},
		{"nvmf:2,copies-sync", []string{"a:n1:0", "b:n1:0"}, nil, ""},
	} {
		t.Run(tt.request+" on "+strings.Join(tt.targets, " "), func(t *testing.T) {
			c := newCluster(t)
			c.Inventory.Targets = nil
			for _, text := range tt.targets {
				w := append(strings.Split(text, ":"), site.OK)
				load, err := strconv.Atoi(w[2])
				require.NoError(t, err)
				c.Inventory.Targets = append(c.Inventory.Targets, site.Target{Name: w[0], Node: w[1], Load: load, Health: w[3], Admin: w[:1]})
				c.held[w[0]] = map[string]*held{}
			}
			err := c.start(t, 1, tt.request)
			if tt.want == nil {
				require.ErrorIs(t, err, ErrUnmeetable)
				assert.Contains(t, c.told[1], "with copies on other nodes")
				return
			}
			require.NoError(t, err)
			l := c.lease(t, "slurm-j1")
			var got []string
			for _, spot := range l.Targets {
				got = append(got, spot.Target)
			}
			assert.ElementsMatch(t, tt.want, got)
			assert.Contains(t, l.Settings("key"), tt.setting)
			require.NoError(t, c.EpilogController(1))
			require.NoError(t, c.start(t, 1, tt.request), "the same again")
		})
	}
}

// TestCopiesApartReplaced checks the same for the replacement of a failed target.
func TestCopiesApartReplaced(t *testing.T) {
	c := newCluster(t)
	const request = "nvmf:2,copies-sync"
	require.NoError(t, c.start(t, 1, request))
	spare := site.Target{Name: "c", Admin: []string{"c"}, Node: "st2", Capacity: 3 * nvmf.GiB, Health: site.OK}
	c.held["c"], c.held["d"] = map[string]*held{}, map[string]*held{}
	for i := range c.Inventory.Targets {
		if c.Inventory.Targets[i].Name == "a" {
			c.Inventory.Targets[i].Health = site.Failed
		}
	}
	c.Inventory.Targets = append(c.Inventory.Targets, spare)
	require.ErrorContains(t, c.start(t, 1, request), "with copies on other nodes", "b is on that node")
	spare.Name, spare.Admin, spare.Node = "d", []string{"d"}, "st3"
	c.Inventory.Targets = append(c.Inventory.Targets, spare)
	require.NoError(t, c.start(t, 1, request))
	assert.Equal(t, []string{"d", "b"}, []string{c.lease(t, "slurm-j1").Targets[0].Target, c.lease(t, "slurm-j1").Targets[1].Target})
}

// TestCopiesSyncStays checks that mirroring cannot be switched on or off later.
func TestCopiesSyncStays(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.start(t, 1, "nvmf:2,name=x"))
	c.end(t, 1)
	require.ErrorContains(t, c.start(t, 2, "nvmf:2,name=x,copies-sync"), "copies-sync=false")
}

package topology

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const treeConf = `
# two racks
SwitchName=rack1 Nodes=cn[1-2],st1 LinkSpeed=100
switchname=rack2 nodes=cn[3-4],st2
SwitchName=spine Switches=rack[1-2] \
    LinkSpeed=400
SwitchName=island Nodes=far1
`

const blockConf = `
BlockName=b1 Nodes=n[1-2]
BlockName=b2 Nodes=n[3-4]
BlockName=b3 Nodes=n[5-6]
BlockSizes=2,4
`

const treeYAML = `
- topology: other
  flat: true
- topology: net
  cluster_default: true
  tree:
    switches:
      - {switch: spine, children: "rack[1-2]"}
      - {switch: rack1, nodes: "cn[1-2],st1"}
      - {switch: rack2, nodes: "cn[3-4],st2"}
      - {switch: island, nodes: far1}
`

const blockYAML = `
---
- topology: b
  block:
    block_sizes: [2, 4]
    blocks:
      - block: b1
        nodes: n[1-2]
      - block: b2
        nodes: n[3-4]
      - block: b3
        nodes: n[5-6]
`

func hops(t *testing.T, net *Topology, a, b string) int {
	t.Helper()
	v, ok := net.Switch(a)
	require.True(t, ok, a)
	w, ok := net.Switch(b)
	require.True(t, ok, b)
	n, _ := net.Hops(v, w)
	m, _ := net.Hops(w, v)
	assert.Equal(t, n, m)
	return n
}

func TestTree(t *testing.T) {
	for name, text := range map[string]string{"topology.conf": treeConf, "topology.yaml": treeYAML} {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		net, err := Load(path)
		require.NoError(t, err)
		assert.Equal(t, 7, net.Nodes())
		assert.Equal(t, 1, hops(t, net, "cn1", "st1"))
		assert.Equal(t, 1, hops(t, net, "cn1", "rack1"))
		assert.Equal(t, 3, hops(t, net, "cn1", "st2"))
		assert.Equal(t, 4, hops(t, net, "cn1", "far1"))
		v, _ := net.Switch("cn3")
		assert.Equal(t, "rack2", net.Name(v))
		w, _ := net.Switch("far1")
		_, apart := net.Hops(v, w)
		assert.True(t, apart)
		_, apart = net.Hops(v, v)
		assert.False(t, apart)
		_, ok := net.Switch("nobody")
		assert.False(t, ok)
	}
}

func TestBlocks(t *testing.T) {
	for _, parse := range []func() (*Topology, error){
		func() (*Topology, error) { return ParseConf([]byte(blockConf)) },
		func() (*Topology, error) { return parseYAML([]byte(blockYAML)) },
	} {
		net, err := parse()
		require.NoError(t, err)
		assert.Equal(t, 1, hops(t, net, "n1", "n2"))
		assert.Equal(t, 3, hops(t, net, "n1", "n3"))
		assert.Equal(t, 5, hops(t, net, "n1", "n5"))
	}
}

func TestAddress(t *testing.T) {
	net := new(Topology)
	require.NoError(t, net.AddAddress("spine.rack1.cn1", "switch.switch.node"))
	require.NoError(t, net.AddAddress("spine.rack2.cn3.site.org", "switch.switch.node"))
	assert.Equal(t, 3, hops(t, net, "cn1", "cn3.site.org"))
	require.NoError(t, net.AddAddress("cn9", "node"))
	for _, c := range [][2]string{{"a.b", "switch.switch.node"}, {"a.b", "switch.switch"}, {"a.b", "rack.node"}, {"", ""}, {"spine.rack1.cn3.site.org", "switch.switch.node"}} {
		assert.ErrorIs(t, net.AddAddress(c[0], c[1]), ErrTopology, c)
	}
}

func TestRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"SwitchName=a Switches=b\nSwitchName=b Switches=a": "below itself",
		"SwitchName=a Switches=a":                          "below itself",
		"SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1":     "node n1 is at both a and b",
		"SwitchName=a Switches=c\nSwitchName=b Switches=c": "below both",
		"SwitchName=a Nodes=n[1-":                          "line 1: nodes of a",
		"include other.conf":                               "not Name=value",
		"Nodes=n1":                                         "neither SwitchName",
		"BlockName=a Nodes=n1\nBlockName=a Nodes=n2":       "defined twice",
		"BlockSizes=4,6":                                   "not a multiple",
	} {
		_, err := ParseConf([]byte(text))
		assert.ErrorContains(t, err, says, text)
	}
	for text, says := range map[string]string{
		"- topology: a\n- topology: b\n": "cluster_default",
		"- topology: a\n":                "neither tree",
		"a: [":                           "network topology",
	} {
		_, err := parseYAML([]byte(text))
		assert.ErrorContains(t, err, says, text)
	}
}

// TestNoNodes checks that unknown words, as of later versions of Slurm, are ignored, but that a file without any
// known node is refused.
func TestNoNodes(t *testing.T) {
	for name, text := range map[string]string{"a.conf": "SwitchName=a Node=n1\n", "a.yaml": "- topology: a\n  tree: {switches: [{switch: a, node: n1}]}\n"} {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := Load(path)
		require.ErrorIs(t, err, ErrTopology)
		require.ErrorContains(t, err, "no switch has nodes")
	}
	none, err := Load(os.DevNull)
	require.NoError(t, err, "a site without switches to tell apart")
	assert.Zero(t, none.Nodes())
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{treeConf, blockConf, treeYAML, blockYAML} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, parse := range []func([]byte) (*Topology, error){ParseConf, parseYAML} {
			if net, err := parse(data); err == nil && len(net.switches) < 100 {
				for a := range net.switches {
					_, _ = net.Hops(a, 0) // checks that it terminates
				}
			}
		}
	})
}

package command

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/balancer"
)

const (
	planTopology = `
SwitchName=rack1 Nodes=cn[1-4],st1
SwitchName=rack2 Nodes=cn[5-8],st2
SwitchName=rack3 Nodes=st3
SwitchName=spine Switches=rack[1-3]
`
	planInventory = `
version: 1
targets:
  - {name: st1a, target: "trtype:TCP traddr:10.0.0.1 subnqn:nqn.st1a", node: st1}
  - {name: st2a, target: "trtype:TCP traddr:10.0.0.2 subnqn:nqn.st2a", node: st2}
  - {name: st3a, target: "trtype:TCP traddr:10.0.0.3 subnqn:nqn.st3a", node: st3}
`
)

// planning runs the command with these files.
func planning(t *testing.T, env map[string]string, o planOptions) (stdout, stderr string, err error) {
	t.Helper()
	dir := t.TempDir()
	o.topology, o.inventory = filepath.Join(dir, "topology.conf"), filepath.Join(dir, "site.yaml")
	require.NoError(t, os.WriteFile(o.topology, []byte(planTopology), 0o600))
	require.NoError(t, os.WriteFile(o.inventory, []byte(planInventory), 0o600))
	var out, errs bytes.Buffer
	err = o.run(&out, &errs, func(name string) string { return env[name] })
	return out.String(), errs.String(), err
}

func TestPlan(t *testing.T) {
	const run = "--target \"trtype:TCP traddr:10.0.0.2 subnqn:nqn.st2a\"\n--target \"trtype:TCP traddr:10.0.0.3 subnqn:nqn.st3a\"\n--mapping \"cn[1-2]=0*28;cn[3-4]=1*28\"\n"
	for what, c := range map[string]struct {
		env map[string]string
		o   planOptions
	}{
		"options":     {nil, planOptions{nodes: "cn[1-4]", ranks: 112, devices: 2}},
		"a list":      {nil, planOptions{nodes: "cn[1-4]", perNode: "28(x4)", devices: 2}},
		"one for all": {nil, planOptions{nodes: "cn[1-4]", perNode: "28", devices: 2}},
		"Slurm":       {map[string]string{"SLURM_JOB_NODELIST": "cn[1-4]", "SLURM_TASKS_PER_NODE": "28(x4)"}, planOptions{devices: 2}},
	} {
		stdout, stderr, err := planning(t, c.env, c.o)
		require.NoError(t, err, what)
		assert.Equal(t, run, stdout, what)
		assert.Empty(t, stderr, what)
	}
}

func TestPlanExplained(t *testing.T) {
	stdout, stderr, err := planning(t, nil, planOptions{nodes: "cn[1-8]", ranks: 8, devices: 2, explain: true, svg: filepath.Join(t.TempDir(), "plan.svg")})
	require.NoError(t, err)
	assert.Contains(t, stdout, "8 ranks on 8 nodes, 2 targets, spread: no rank shares its switch or node with its own target")
	assert.Regexp(t, `(?m)^0-3 +cn\[1-4\] +st2a +3$`, stdout)
	assert.Regexp(t, `(?m)^switch rack2 +4 +4 +0$`, stdout)
	assert.Contains(t, stderr, "one failure may end ranks and lose the data of others")
	assert.True(t, strings.HasSuffix(stdout, "--mapping \"cn[1-4]=0;cn[5-8]=1\"\n"))
}

func TestPlanDrawn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plan.svg")
	_, _, err := planning(t, nil, planOptions{nodes: "cn[1-4]", ranks: 8, devices: 2, svg: path})
	require.NoError(t, err)
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	text := ""
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if c, ok := token.(xml.CharData); ok {
			text += string(c)
		}
	}
	for _, word := range []string{"rack1", "cn4: 2 ranks", "st3a: 4 ranks", "3.0 switches"} {
		assert.Contains(t, text, word)
	}
}

func TestPlanJSON(t *testing.T) {
	stdout, _, err := planning(t, nil, planOptions{nodes: "cn[1-4]", ranks: 6, devices: 2, json: true})
	require.NoError(t, err)
	var p plannedJSON
	require.NoError(t, json.Unmarshal([]byte(stdout), &p))
	assert.Equal(t, "apart", p.Kind)
	require.Len(t, p.Hosts, 4)
	assert.Equal(t, []plannedShare{{"st2a", 2, 3}}, p.Hosts[0].Shares)
	_, err = balancer.ParsePlan(p.Mapping)
	assert.NoError(t, err)
	assert.NotEmpty(t, p.Failures)
}

func TestPlanRefuses(t *testing.T) {
	for says, o := range map[string]planOptions{
		"name the nodes of the job with --nodes": {ranks: 1},
		"--ranks or --ranks-per-node":            {nodes: "cn1"},
		"bracket":                                {nodes: "cn[1", ranks: 1},
		"is not the numbers of ranks of 2 nodes, as in 28(x3),14": {nodes: "cn[1-2]", perNode: "1,1,1"},
		"and there are 3":              {nodes: "cn[1-3]", perNode: "1,1"},
		"is not a size":                {nodes: "cn1", ranks: 1, capacity: "much"},
		"--devices -1":                 {nodes: "cn1", ranks: 1, devices: -1},
		"4 targets are wanted":         {nodes: "cn1", ranks: 4, devices: 4},
		"outside of the job's failure": {nodes: "cn[1-8]", ranks: 8, devices: 2, strict: true},
	} {
		_, _, err := planning(t, nil, o)
		assert.ErrorContains(t, err, says)
	}
	o := planOptions{nodes: "cn1", ranks: 1, topology: "/nonexistent"}
	assert.ErrorIs(t, o.run(io.Discard, io.Discard, func(string) string { return "" }), os.ErrNotExist)
}

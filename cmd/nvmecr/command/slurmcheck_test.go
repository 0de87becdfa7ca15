package command

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
	"nvmecr/slurm"
)

// TestSlurmCheckState checks the remedies for a wrong state directory.
func TestSlurmCheckState(t *testing.T) {
	dir := t.TempDir()
	open, file := filepath.Join(dir, "open"), filepath.Join(dir, "file")
	require.NoError(t, os.Mkdir(open, 0o755))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Chmod(dir, 0o700))
	self := fmt.Sprintf("slurm(%d)", os.Getuid())
	for _, tt := range []struct{ state, user, remedy string }{
		{dir, self, ""},
		{dir, "", ""}, // the required owner is unknown
		{dir, "slurm(987654)", "run as slurm(987654), and it belongs to user"},
		{open, self, "chmod 700"},
		{file, self, "no directory"},
		{filepath.Join(dir, "gone"), self, "make it"},
	} {
		f := (&slurmOptions{state: tt.state}).checkState(slurmConf{"SlurmUser": tt.user})
		assert.Contains(t, f.Remedy, tt.remedy)
		assert.Equal(t, tt.remedy == "", f.State == findingOK, "%+v", tt)
	}
}

func TestSlurmCheckLeases(t *testing.T) {
	h := &slurm.Hooks{State: t.TempDir(), Inventory: &site.Inventory{Targets: []site.Target{{Name: "a", Admin: []string{"false"}}}}, Targets: new(slurm.Commands)}
	f := checkOrphans(t.Context(), h)
	assert.Equal(t, findingPoor, f.State)
	assert.Equal(t, "target a: false list: exit status 1", f.Found)
}

func TestSlurmCheckPlugins(t *testing.T) {
	dir := t.TempDir()
	stack, plugin := filepath.Join(dir, "plugstack.conf"), filepath.Join(dir, "nvmecr-spank.so")
	require.NoError(t, os.WriteFile(plugin, nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "plugstack.d"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "plugstack.d", "nvmecr.conf"), []byte("optional "+plugin+" /bin/sh"), 0o600))
	for _, tt := range []struct{ text, state, says string }{
		{"optional " + plugin + " /bin/sh /run/other # ours", findingOK, "/bin/sh /run/other"},
		{"include " + stack + "\n include " + dir + "/plugstack.d/*", findingOK, plugin},
		{"required " + plugin + " /bin/sh", findingPoor, "write optional"},
		{"optional " + plugin, findingPoor, "nvmecr run"},
		{"optional " + plugin + " /bin/nvmecr-is-not-here", findingMissing, "no task of a job"},
		{"optional " + plugin + ".gone /bin/sh", findingMissing, "not there"},
		{"optional nvmecr-spank.so /bin/sh", findingPoor, "PluginDir"},
		{"# optional " + plugin + "\noptional other.so", findingPoor, "no nvmecr-spank.so"},
	} {
		require.NoError(t, os.WriteFile(stack, []byte(tt.text), 0o600))
		for _, conf := range []slurmConf{{"PlugStackConfig": stack}, {"SLURM_CONF": filepath.Join(dir, "slurm.conf")}} {
			f := checkPlugins(conf)
			assert.Equal(t, tt.state, f.State, tt.text)
			assert.Contains(t, f.Found+": "+f.Remedy, tt.says)
		}
	}
	require.NoError(t, os.Remove(stack))
	assert.Equal(t, findingPoor, checkPlugins(slurmConf{"PlugStackConfig": stack}).State)
}

func TestSlurmCheckPlace(t *testing.T) {
	net, err := topology.ParseConf([]byte("SwitchName=rack1 Nodes=st1\n"))
	require.NoError(t, err)
	h := &slurm.Hooks{Network: net}
	for _, target := range []site.Target{{Node: "st1"}, {Switch: "rack1"}, {Node: "other", Switch: "rack1"}} {
		assert.Empty(t, checkPlace(h, target), "%+v", target)
	}
	for _, target := range []site.Target{{}, {Node: "st11"}, {Switch: "rack2"}} {
		assert.Len(t, checkPlace(h, target), 1, "%+v", target)
	}
	h.Network = new(topology.Topology)
	assert.Empty(t, checkPlace(h, site.Target{Node: "st11"}), "a site without switches")
}

func TestSlurmCheckHooks(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"own.sh": "#!/bin/sh\nexec /opt/nvmecr/nvmecr-hook.sh\n", "other.sh": "#!/bin/sh\nclean /tmp\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	own, other := filepath.Join(dir, "own.sh"), filepath.Join(dir, "other.sh")
	for programs, state := range map[string]string{
		"": findingMissing, own: findingOK, other: findingPoor, other + " " + own: findingOK, other + "," + own: findingOK, dir + "/*": findingOK, dir + "/t*": findingPoor,
		"/on/nodes/nvmecr-hook.sh": findingOK, "/on/nodes/prolog.sh": findingPoor,
	} {
		assert.Equal(t, state, checkHook("Prolog", programs, "without it").State, programs)
	}
	for flags, state := range map[string]string{"": findingMissing, "Contain": findingMissing, "Alloc,Contain": findingOK} {
		all := checkSlurmConf(slurmConf{"PrologFlags": flags})
		assert.Equal(t, state, all[len(all)-1].State, flags)
	}
}

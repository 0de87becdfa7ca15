package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
)

// TestKeep checks that the newest checkpoints of a job stay on each level, and that the newest complete one is never removed.
func TestKeep(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.View = config.ViewJob
	dir := filepath.Join(s.Dir, "lustre")
	require.NoError(t, os.Mkdir(dir, 0o700))
	const pattern = "ck-{step}/**"
	flags := []string{"--level2", dir, "--level2-pattern", pattern, "--keep", "1"}
	on := func() []string { return levels(t, call(t, s, "checkpoints", "--level2", dir, "--json", pattern)) }

	sh(t, s, "echo mine > /nvmecr/notes; "+writeSets, append(flags, "--size", "256M")...)
	assert.Equal(t, []string{"200 [store level2] true", "300 [store] false"}, on())
	sh(t, s, "mkdir /nvmecr/ck-400; for r in 0 1 2; do echo x > /nvmecr/ck-400/state.$r; echo x > /nvmecr/ck-400/grid.$r; done", flags...).ok(t)
	assert.Equal(t, []string{"400 [store level2] true"}, on(), "300 was interrupted, and is not written any more")
	ls := call(t, s, "ls").ok(t)
	assert.Contains(t, ls, "/notes", "what is no checkpoint stays")
	assert.NotContains(t, ls, "/ck-200", "not even a directory")
	assert.NotContains(t, ls, "/ck-300")

	sh(t, s, "true", "--keep", "some").refused(t, "--keep", "auto")
	s.View = config.ViewRank
	sh(t, s, "true", "--name", "ranks", "--keep", "2").refused(t, "--keep", "--view=job")
}

// TestKeepWithoutLevel2 makes the second level unreachable. Old checkpoints are removed from the store as before.
func TestKeepWithoutLevel2(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.View = config.ViewJob
	dir := filepath.Join(s.Dir, "lustre")
	require.NoError(t, os.Mkdir(dir, 0o700))
	script := `mv ` + dir + ` ` + dir + `.away; for i in 1 2 3; do echo $i > /nvmecr/ckpt.$i; done
		i=0; while [ -e /nvmecr/ckpt.1 ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done; ls /nvmecr`
	r := sh(t, s, script, "--level2", dir, "--keep", "1", "--size", "64M")
	assert.Equal(t, "ckpt.3\n", r.ok(t))
	assert.Contains(t, r.stderr, "second level "+dir+": not a directory")
}

// TestKeepOthers checks that without a pattern only files that are evidently checkpoints are removed.
func TestKeepOthers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.View = config.ViewJob
	r := sh(t, s, "mkdir /nvmecr/in; for i in 1 2 3; do echo $i > /nvmecr/in/mesh_$i.vtk; echo $i > /nvmecr/ckpt.$i; done", "--keep", "1", "--size", "64M")
	r.ok(t)
	assert.Equal(t, 1, strings.Count(r.stderr, "nvmecr: --keep removes no file of in/mesh_{step}.vtk"), r.stderr)
	assert.Contains(t, r.stderr, "--level2-pattern")
	assert.Equal(t, "ckpt.3\nin\nmesh_1.vtk\nmesh_2.vtk\nmesh_3.vtk\n", sh(t, s, "cd /nvmecr; ls; ls in", "--keep", "1", "--level2-pattern", "ckpt.{step}").ok(t))
	assert.Equal(t, "in\nmesh_3.vtk\n", sh(t, s, "rm /nvmecr/ckpt.3", "--keep", "1", "--level2-pattern", "in/mesh_{step}.vtk").ok(t)+sh(t, s, "cd /nvmecr; ls; ls in").ok(t))
}

// TestStepBack lets a job go on from an earlier checkpoint. What it writes then has smaller numbers than older checkpoints, and is the newest on each level:
// it stays, is copied, and is what the next run begins with.
func TestStepBack(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.View = config.ViewJob
	dir := filepath.Join(s.Dir, "lustre")
	require.NoError(t, os.Mkdir(dir, 0o700))
	flags := []string{"--level2", dir, "--size", "64M"}
	on := func() []string { return levels(t, call(t, s, "checkpoints", "--level2", dir, "--json")) }
	sh(t, s, "for i in 1 2 9; do echo $i > /nvmecr/ckpt.$i; done", flags...).ok(t)
	sh(t, s, "rm /nvmecr/ckpt.9; echo 3 > /nvmecr/ckpt.3", flags...).ok(t)
	assert.Equal(t, []string{"1 [store] true", "2 [store] true", "9 [level2] true", "3 [store level2] true"}, on())

	r := sh(t, s, s.Nvmecr+" latest; ls /nvmecr", flags...)
	assert.Equal(t, "3\nckpt.1\nckpt.2\nckpt.3\n", r.ok(t), "the job has removed 9")
	assert.Contains(t, r.stderr, "ckpt.{step}: 3, in the store")
	assert.Regexp(t, "passed over: 9 was written .*, and 3 after it, ", r.stderr)
	require.NoError(t, os.RemoveAll(filepath.Dir(s.Image("default"))))
	r = sh(t, s, "ls /nvmecr", flags...)
	assert.Equal(t, "ckpt.3\n", r.ok(t))
	assert.Contains(t, r.stderr, ": 3, copied back from "+filepath.Join(dir, "default", "ckpt.3"))

	r = sh(t, s, "echo 9 > /nvmecr/ckpt.9; echo 2 > /nvmecr/ckpt.2; "+s.Nvmecr+" latest", append(flags, "--keep", "1")...)
	assert.Equal(t, "2\n", r.ok(t))
	assert.Regexp(t, "passed over: 9 was written .*, and 2 after it", r.stderr)
	assert.Equal(t, []string{"9 [store] true", "2 [store level2] true"}, on(), "the greatest number stays in the store: a clock may have been wrong")
}

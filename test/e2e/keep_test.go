package e2e

import (
	"os"
	"path/filepath"
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
	assert.Equal(t, []string{"300 [store] false", "400 [store level2] true"}, on())
	ls := call(t, s, "ls").ok(t)
	assert.Contains(t, ls, "/notes", "what is no checkpoint stays")
	assert.NotContains(t, ls, "/ck-200", "not even a directory")

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
	script := `mv ` + dir + ` ` + dir + `.away; for i in 1 2 3; do echo $i > /nvmecr/ck.$i; done
		i=0; while [ -e /nvmecr/ck.1 ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done; ls /nvmecr`
	r := sh(t, s, script, "--level2", dir, "--keep", "1", "--size", "64M")
	assert.Equal(t, "ck.3\n", r.ok(t))
	assert.Contains(t, r.stderr, "second level "+dir+": not a directory")
}

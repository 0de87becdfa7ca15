package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/s3server"
)

// TestS3 checks that a run copies its checkpoints to a bucket, lists them, and restores them to a lost store.
func TestS3(t *testing.T) {
	server := s3server.Start(t)
	for _, v := range server.Environ() {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	s := newStage(t)
	s.View = config.ViewJob
	const level2, pattern = "s3://" + s3server.Bucket + "/of/me", "ck-{step}/**"
	sh(t, s, writeSets, "--size", "256M", "--level2", level2, "--level2-pattern", pattern)
	list := func() []string { return levels(t, call(t, s, "checkpoints", "--json", pattern)) }
	assert.Equal(t, []string{"100 [store] true", "200 [store level2] true", "300 [store] false"}, list())
	assert.Regexp(t, "^200: is in "+level2+"/default/ck-200~[0-9a-f]{16}\n$", call(t, s, "drain", pattern).ok(t))

	before := filepath.Join(s.Dir, "before")
	call(t, s, "cp", "/ck-200", before).ok(t)
	require.NoError(t, os.RemoveAll(filepath.Dir(s.Image("default"))))
	assert.Contains(t, call(t, s, "restore", "--level2", level2, pattern).ok(t), "200: 6 files of 17 MiB copied from "+level2)
	back := filepath.Join(s.Dir, "back")
	call(t, s, "cp", "/ck-200", back).ok(t)
	assert.True(t, sameTree(tree(t, before), tree(t, back)))

	sh(t, s, "true", "--level2", "s3://none").refused(t, `second level s3://none: `, `no bucket "none": make it`)
}

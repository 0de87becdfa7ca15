package paper

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nvmecr/bench/result"
)

// TestBeside checks the texts of numbers of the paper.
func TestBeside(t *testing.T) {
	assert.Equal(t, result.Claim{What: Memory.What, Paper: "506 MB (404 MB for inodes, 102 MB for the B+Tree)", Source: "section IV.G", Here: "3 MiB"},
		Memory.Beside("%d MiB", 3))
	assert.Equal(t, "39.5 s (GlusterFS 44.5 s, OrangeFS 85.9 s)", MultilevelCheckpoint.Beside("").Paper)
	assert.Equal(t, MemoryInodes.Value+MemoryTree.Value, Memory.Value)
	assert.Equal(t, "425 MiB", MediaOurs.Cell().Format(result.Column{}))
}

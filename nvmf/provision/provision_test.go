package provision

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNames checks which names a job may have, and that JobOf finds the name in the NQN of a job only.
func TestNames(t *testing.T) {
	for job, ok := range map[string]bool{
		"melt": true, "a": true, "9.1_x-Y": true, strings.Repeat("x", 48): true,
		"": false, ".": false, "..": false, ".a": false, "-a": false, "_a": false, "a/b": false, "a:b": false,
		"a b": false, "ä": false, "a\x00": false, strings.Repeat("x", 49): false,
	} {
		err := CheckJob(job)
		assert.Equal(t, ok, err == nil, "%q", job)
		if ok {
			assert.Equal(t, job, JobOf(Base, NQN(Base, job)), "the NQN contains the job's name")
		} else {
			require.ErrorIs(t, err, ErrInvalid)
			assert.Empty(t, JobOf(Base, NQN(Base, job)))
		}
	}
	for _, nqn := range []string{"", Base, Base + "x:melt", "nqn.2014-08.org.nvmexpress.discovery"} {
		assert.Empty(t, JobOf(Base, nqn))
	}
}

// TestHosts checks that CheckHosts sorts host NQNs, removes duplicates, and refuses invalid ones.
func TestHosts(t *testing.T) {
	hosts, err := CheckHosts("j", []string{"nqn.2014-08.org:b", "nqn.2014-08.org:a", "nqn.2014-08.org:b"})
	require.NoError(t, err)
	assert.Equal(t, []string{"nqn.2014-08.org:a", "nqn.2014-08.org:b"}, hosts)
	hosts, err = CheckHosts("j", nil)
	require.NoError(t, err)
	assert.NotNil(t, hosts)
	for _, h := range []string{"", "nqn.", "host", "nqn.2014-08.org/../x", "nqn.2014-08.org: x", "nqn." + strings.Repeat("x", 220)} {
		_, err := CheckHosts("j", []string{h})
		require.ErrorIs(t, err, ErrInvalid, h)
	}
}

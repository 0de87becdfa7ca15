package cli

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTell(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   int
		stderr string
	}{
		{nil, 0, ""},
		{Status(139), 139, ""},
		{errors.New("it broke"), 1, "nvmecr: it broke\n"},
		{fmt.Errorf("so: %w", UsageError{Err: errors.New("what")}), 2, "nvmecr: so: what\n"},
		{errors.Join(errors.New("a"), errors.New("b")), 1, "nvmecr: a; b\n"},
		{errors.New("the target says \x1b[2J\rü\x9b"), 1, `nvmecr: the target says \x1b[2J\rü` + "\ufffd\n"},
	} {
		var stderr bytes.Buffer
		assert.Equal(t, c.code, Tell(c.err, &stderr))
		assert.Equal(t, c.stderr, stderr.String())
	}
}

func TestFlagsFromEnv(t *testing.T) {
	var list []string
	var count, given, other int
	parse := func(args ...string) error {
		cmd := &cobra.Command{}
		cmd.Flags().StringArrayVar(&list, "some-list", nil, "[NVMECR_SOME_LIST]")
		cmd.Flags().IntVar(&count, "count", 0, "[NVMECR_COUNT]")
		cmd.Flags().IntVar(&given, "given", 0, "[NVMECR_GIVEN]")
		cmd.Flags().IntVar(&other, "other", 0, "says nothing of a variable")
		require.NoError(t, cmd.ParseFlags(args))
		return flagsFromEnv(cmd, nil)
	}
	t.Setenv("NVMECR_SOME_LIST", "a;b")
	t.Setenv("NVMECR_COUNT", "3")
	t.Setenv("NVMECR_GIVEN", "7")
	t.Setenv("NVMECR_OTHER", "7")
	require.NoError(t, parse("--given", "1"))
	assert.Equal(t, []string{"a", "b"}, list)
	assert.Equal(t, 3, count)
	assert.Equal(t, 1, given)
	assert.Equal(t, 0, other)

	t.Setenv("NVMECR_COUNT", "x")
	assert.ErrorContains(t, parse(), "NVMECR_COUNT")
	assert.ErrorAs(t, parse(), new(UsageError))
}

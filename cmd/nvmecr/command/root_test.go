package command

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   int
		stderr string
	}{
		{nil, 0, ""},
		{statusError(139), 139, ""},
		{errors.New("it broke"), 1, "nvmecr: it broke\n"},
		{fmt.Errorf("so: %w", usageError{errors.New("what")}), 2, "nvmecr: so: what\n"},
		{errors.Join(errors.New("a"), errors.New("b")), 1, "nvmecr: a; b\n"},
		{errors.New("the target says \x1b[2J\rü\x9b"), 1, `nvmecr: the target says \x1b[2J\rü` + "\ufffd\n"},
	} {
		var stderr bytes.Buffer
		assert.Equal(t, c.code, status(c.err, &stderr))
		assert.Equal(t, c.stderr, stderr.String())
	}
}

// TestHelp holds every command to an example and every visible flag to the
// name of its variable.
func TestHelp(t *testing.T) {
	for _, cmd := range newRoot().Commands() {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		t.Run(cmd.Name(), func(t *testing.T) {
			assert.Contains(t, cmd.Example, "nvmecr "+cmd.Name())
			help := cmd.Flags().FlagUsages()
			for _, l := range strings.Split(strings.TrimSpace(help), "\n") {
				if l != "" {
					assert.Contains(t, l, "[NVMECR_")
				}
			}
		})
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
	assert.ErrorAs(t, parse(), new(usageError))
}

// TestArguments: too many or too few are told in words of ours.
func TestArguments(t *testing.T) {
	for args, want := range map[string]string{
		"cp a":       "nvmecr cp takes PATH LOCAL, and was given 1 argument; see `nvmecr cp --help`",
		"cat":        "nvmecr cat takes PATH..., and was given 0 arguments",
		"ls a b":     "nvmecr ls takes [PATH], and was given 2 arguments",
		"verify x":   `nvmecr verify takes no arguments, and was given "x"`,
		"frob":       `unknown command "frob"`,
		"bench frob": `unknown command "frob" for "nvmecr bench"`,
		"run":        "no COMMAND to run",
	} {
		root := newRoot()
		root.SetArgs(strings.Fields(args))
		err := root.Execute()
		assert.ErrorContains(t, err, want)
		assert.ErrorAs(t, err, new(usageError), args)
	}
}

func TestVersionFlag(t *testing.T) {
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetArgs([]string{"--version"})
	assert.NoError(t, root.Execute())
	assert.Equal(t, versionText(), out.String())
}

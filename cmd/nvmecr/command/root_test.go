package command

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"nvmecr/internal/cli"
)

// TestHelp checks that every command has an example, and every visible flag the name of its variable.
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

// TestArguments checks the messages about too many or too few arguments.
func TestArguments(t *testing.T) {
	for args, want := range map[string]string{
		"cp a":     "nvmecr cp takes PATH LOCAL, and was given 1 argument; see `nvmecr cp --help`",
		"cat":      "nvmecr cat takes PATH..., and was given 0 arguments",
		"ls a b":   "nvmecr ls takes [PATH], and was given 2 arguments",
		"verify x": `nvmecr verify takes no arguments, and was given "x"`,
		"frob":     `unknown command "frob"`,
		"run":      "no COMMAND to run",
	} {
		root := newRoot()
		root.SetArgs(strings.Fields(args))
		err := root.Execute()
		assert.ErrorContains(t, err, want)
		assert.ErrorAs(t, err, new(cli.UsageError), args)
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

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"nvmecr/internal/cli"
)

// TestArguments checks that invalid arguments are refused before anything is measured, with an
// error that names the flag or the command.
func TestArguments(t *testing.T) {
	for args, want := range map[string]string{
		"frob":                   `unknown command "frob" for "nvmecr bench"; see ` + "`nvmecr bench --help`",
		"--frob":                 "unknown flag: --frob; see `nvmecr bench --help`",
		"goals x":                "nvmecr bench goals takes no arguments, and was given \"x\"; see `nvmecr bench goals --help`",
		"goals --only x":         "--only x: there is no such part",
		"report --only x":        "--only x: there is no such experiment",
		"checkpoint --rounds x":  `invalid argument "x" for "--rounds" flag`,
		"checkpoint --peer x":    "--peer x: is not dir:PATH",
		"checkpoint --size 1X":   "--size: ",
		"checkpoint --ranks -1":  "--ranks: is negative",
		"scale --fabric nothing": "--fabric: ",
	} {
		root := newRoot()
		root.SetArgs(strings.Fields(args))
		err := root.Execute()
		assert.ErrorContains(t, err, want, args)
		assert.ErrorAs(t, err, new(cli.UsageError), args)
	}
}

// TestVariables checks that flags take their values from environment variables, as the flags of
// nvmecr do.
func TestVariables(t *testing.T) {
	t.Setenv("NVMECR_ROUNDS", "x")
	root := newRoot()
	root.SetArgs([]string{"raw"})
	assert.ErrorContains(t, root.Execute(), `NVMECR_ROUNDS: `)
}

// TestHelp checks that help and completion show the commands as users type them: with the name
// "nvmecr bench".
func TestHelp(t *testing.T) {
	for args, want := range map[string][]string{
		"":                  {"  nvmecr bench [command]", "  checkpoint  ", "  report  ", "Use \"nvmecr bench [command] --help\""},
		"--help":            {"  nvmecr bench [command]"},
		"help goals":        {"  nvmecr bench goals [flags]", "--only PART"},
		"__complete che":    {"checkpoint\tCompare checkpoints"},
		"__complete --help": {"--help"},
	} {
		var out strings.Builder
		root := newRoot()
		root.SetArgs(strings.Fields(args))
		root.SetOut(&out)
		assert.NoError(t, root.Execute())
		for _, w := range want {
			assert.Contains(t, out.String(), w, args)
		}
		assert.NotContains(t, out.String(), "nvmecr-bench", args)
	}
}

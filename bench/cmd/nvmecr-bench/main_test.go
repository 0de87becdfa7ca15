package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"nvmecr/internal/cli"
)

// TestArguments: what is wrong is told in the words that users type, before anything is measured.
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

// TestVariables: flags take their values from variables, as those of nvmecr do.
func TestVariables(t *testing.T) {
	t.Setenv("NVMECR_ROUNDS", "x")
	root := newRoot()
	root.SetArgs([]string{"raw"})
	assert.ErrorContains(t, root.Execute(), `NVMECR_ROUNDS: `)
}

// TestHelp: the commands, and their flags, are called what users type.
func TestHelp(t *testing.T) {
	for args, want := range map[string][]string{
		"":                  {"  nvmecr bench [command]", "  checkpoint  ", "  report  ", "Use \"nvmecr bench [command] --help\""},
		"--help":            {"  nvmecr bench [command]"},
		"help goals":        {"  nvmecr bench goals [flags]", "--only PART"},
		"__complete che":    {"checkpoint\tWrite checkpoints"},
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

package command

import (
	"os"
	"os/exec"
	"testing"

	"nvmecr/internal/cli"
)

// asNvmecr makes the test binary act as nvmecr, so that tests, and the command itself, can start it as a process.
const asNvmecr = "COMMAND_TEST_AS_NVMECR"

func TestMain(m *testing.M) {
	switch os.Getenv(asNvmecr) {
	case "":
		os.Exit(m.Run())
	case "job":
		code, err := runJob(os.Args[1:], os.Environ(), surroundings{})
		if err != nil {
			os.Exit(cli.Tell(err, os.Stderr))
		}
		os.Exit(code)
	default:
		os.Exit(Main(os.Args[1:]))
	}
}

// nvmecr returns the command `nvmecr args...`; with as "job" one that runs
// args as `nvmecr run` runs its job.
func nvmecr(as string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asNvmecr+"="+as)
	return cmd
}

// Package command is the command line of nvmecr: one file and one options
// struct for each subcommand. It decides nothing about storage; what is read,
// written or refused is decided in internal/store and below.
package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nvmecr/internal/config"
)

// Exit statuses of our own. `nvmecr run` otherwise ends with the job's.
const (
	exitFailure = 1 // what was asked for could not be done
	exitUsage   = 2 // what was asked for makes no sense
)

// statusError ends the program with a status and without a message.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// usageError is a command line that makes no sense.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Main runs the command line args and returns the exit status. Errors are
// printed on stderr, on one line.
func Main(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	return status(root.Execute(), os.Stderr)
}

func status(err error, stderr io.Writer) int {
	var code statusError
	if err == nil {
		return 0
	}
	if errors.As(err, &code) {
		return int(code)
	}
	fmt.Fprintln(stderr, oneLine(err))
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return exitFailure
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "nvmecr",
		Short: "Checkpoint storage of its own for every rank of an MPI job",
		Long: `nvmecr gives every rank of an unmodified MPI application a private file system
on its slice of an NVMe-over-Fabrics namespace. What the application writes
under the mount (/nvmecr) survives the death of the job; a run of the same
name finds it again.`,
		Example: `  nvmecr run -- mpirun -n 4 ./app            # checkpoints go under /nvmecr
  nvmecr ls                                  # what each rank holds
  nvmecr cp --rank 0 /state.42 ./state.42    # copy a file out`,
		SilenceErrors:     true,
		PersistentPreRunE: flagsFromEnv,
		SilenceUsage:      true,
		Args:              usageArgs(cobra.NoArgs),
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// What package strconv calls it is no news to the user.
		text, _, _ := strings.Cut(err.Error(), ": strconv.")
		return usageError{fmt.Errorf("%s; see `%s --help`", text, cmd.CommandPath())}
	})
	root.Version = versionText()
	root.SetVersionTemplate("{{.Version}}")
	root.AddCommand(
		newRun(), newTarget(), newAdmin(), newKeygen(),
		newLs(), newLatest(), newCat(), newMount(), newCp(), newStat(), newStores(), newFsck(), newVerify(), newRelease(),
		newHostNQN(), newDiscover(), newDemo(), newBench(), newVersion(),
	)
	return root
}

// usageArgs makes what check complains of a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		if _, wanted, ok := strings.Cut(cmd.Use, " "); cobraSays.MatchString(err.Error()) && !cmd.HasSubCommands() {
			if wanted = strings.TrimSpace(strings.TrimPrefix(wanted, "[flags]")); !ok || wanted == "" {
				err = fmt.Errorf("%s takes no arguments, and was given %q", cmd.CommandPath(), args[0])
			} else {
				err = fmt.Errorf("%s takes %s, and was given %s", cmd.CommandPath(), wanted, count(len(args), "argument"))
			}
		}
		return usageError{fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())}
	}
}

// cobraSays is how the library of the command line tells of too many or too few
// arguments.
var cobraSays = regexp.MustCompile(`^(accepts|requires) .*arg\(s\)|^unknown command .* for "nvmecr .+"`)

// flagsFromEnv gives flags that were not given the value of the variable that
// their help names: [NVMECR_FLAG]. Values of a repeatable flag are separated
// by ';'. The settings take theirs when they are resolved.
func flagsFromEnv(cmd *cobra.Command, _ []string) error {
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		variable := "NVMECR_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		text := os.Getenv(variable)
		if text == "" || f.Changed || config.IsSetting(f.Name) || !strings.HasSuffix(f.Usage, "["+variable+"]") {
			return
		}
		values := []string{text}
		if _, ok := f.Value.(pflag.SliceValue); ok {
			values = strings.Split(text, ";")
		}
		for _, v := range values {
			if err := cmd.Flags().Set(f.Name, v); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", variable, err))
			}
		}
	})
	if len(errs) > 0 {
		return usageError{errors.Join(errs...)}
	}
	return nil
}

// A flagSwitch is a flag of on and off; without a value it means on.
type flagSwitch bool

// addSwitch adds one; short may be "".
func addSwitch(fs *pflag.FlagSet, on *bool, name, short, help string) {
	fs.VarPF((*flagSwitch)(on), name, short, help).NoOptDefVal = "on"
}

func (s *flagSwitch) String() string { return strconv.FormatBool(bool(*s)) }
func (s *flagSwitch) Type() string   { return "bool" }

func (s *flagSwitch) Set(text string) error {
	on, err := config.ParseSwitch(text)
	*s = flagSwitch(on)
	return err
}

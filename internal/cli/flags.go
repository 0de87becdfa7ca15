package cli

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nvmecr/internal/config"
)

// Prepare makes the program root, and all commands below it, leave errors to Execute, and read flags that were not
// given from their variables.
func Prepare(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.PersistentPreRunE = flagsFromEnv
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// The text of package strconv adds nothing for users.
		text, _, _ := strings.Cut(err.Error(), ": strconv.")
		return UsageError{fmt.Errorf("%s; see `%s --help`", text, cmd.CommandPath())}
	})
}

// Args converts errors of check to a UsageError.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		if _, wanted, ok := strings.Cut(cmd.Use, " "); cobraSays.MatchString(err.Error()) && !cmd.HasSubCommands() {
			if wanted = strings.TrimSpace(strings.TrimPrefix(wanted, "[flags]")); !ok || wanted == "" {
				err = fmt.Errorf("%s takes no arguments, and was given %q", cmd.CommandPath(), args[0])
			} else {
				err = fmt.Errorf("%s takes %s, and was given %d argument%s", cmd.CommandPath(), wanted, len(args), plural(len(args)))
			}
		}
		return UsageError{fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())}
	}
}

// cobraSays matches cobra's messages about wrong numbers of arguments.
var cobraSays = regexp.MustCompile(`^(accepts|requires) .*arg\(s\)|^unknown command .* for "nvmecr .+"`)

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// flagsFromEnv sets flags that were not given to the value of the variable in their help: [NVMECR_FLAG]. Values of a
// repeatable flag are separated by ';'. Settings are not included; Config.Resolve reads their variables.
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
		return UsageError{errors.Join(errs...)}
	}
	return nil
}

type flagSwitch bool

// AddSwitch adds a flag of on and off to fs, which sets *on; without a value it means
// on. short may be "".
func AddSwitch(fs *pflag.FlagSet, on *bool, name, short, help string) {
	fs.VarPF((*flagSwitch)(on), name, short, help).NoOptDefVal = "on"
}

func (s *flagSwitch) String() string { return strconv.FormatBool(bool(*s)) }
func (s *flagSwitch) Type() string   { return "bool" }

func (s *flagSwitch) Set(text string) error {
	on, err := config.ParseSwitch(text)
	*s = flagSwitch(on)
	return err
}

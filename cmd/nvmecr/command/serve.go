package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/serve"
)

// newServe is the process that `nvmecr run` starts beside its job.
func newServe() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Serve the processes of a run on this host",
		Long: `Does for the processes of a run on this host what none of them can do for the others.
nvmecr run starts it, with the settings of the run in its environment. It ends when standard
input does. It prints what it exports, or why it exports nothing, when it serves.`,
		Example: `  nvmecr run -- mpirun -n 4 ./app    # starts nvmecr serve`,
		Hidden:  true,
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serveRun(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

// serveRun says on stdout that it serves, and goes on until stdin ends.
func serveRun(stdin io.Reader, stdout, stderr io.Writer) error {
	cfg, err := config.FromEnv(os.Getenv)
	if err != nil {
		return cli.UsageError{Err: err}
	}
	// What is typed at the terminal is for the job, which goes on until it ends.
	signal.Ignore(syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s := serve.New(cfg, func(format string, args ...any) { fmt.Fprintf(stderr, "nvmecr: "+format+"\n", args...) })
	if err := s.TakeOver(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, export(s, cfg)); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, stdin) // any end is the end
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return s.Close()
}

// exported is what serve says when it has exported the files.
const exported = "exported"

// export exports the files where the run says.
func export(s *serve.Server, cfg *config.Config) string {
	if cfg.View == "" {
		return "not asked to export"
	}
	if err := s.Export(cfg.View); err != nil {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return exported
}

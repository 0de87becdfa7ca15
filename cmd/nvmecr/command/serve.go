package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
	"nvmecr/serve"
)

type serveOptions struct{ detach, untilIdle, linger, indexSocket, joined bool }

// newServe is the command that `nvmecr run` starts in addition to its job.
func newServe() *cobra.Command {
	o := &serveOptions{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the processes of a run on this host",
		Long: `Provides services to the processes of a run on this host, such as files that several of them share.
nvmecr run starts it, with the settings of the run in its environment. It ends when standard
input ends; with --linger, when after that no process uses its files any more. When it is ready it prints what it exports, or why it exports nothing. On other hosts the first process that uses
the mount starts it with --detach; then it ends when no process needs it any more.`,
		Example: `  nvmecr run -- mpirun -n 4 ./app    # starts nvmecr serve`,
		Hidden:  true,
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.detach {
				return detach(cmd.ErrOrStderr())
			}
			return o.serve(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.detach, "detach", false, "serve in the background, and return when the server is ready [NVMECR_DETACH]")
	f.BoolVar(&o.untilIdle, "until-idle", false, "end when no process needs it any more [NVMECR_UNTIL_IDLE]")
	f.BoolVar(&o.indexSocket, "index-socket", false, "descriptor 3 is the socket at which other hosts reach the index of the job's files [NVMECR_INDEX_SOCKET]")
	f.BoolVar(&o.joined, "joined", false, "the index of the job's files is in the server of another host [NVMECR_JOINED]")
	f.BoolVar(&o.linger, "linger", false, "continue after the end of input while processes use its files [NVMECR_LINGER]")
	return cmd
}

// detach starts a server in a session of its own, without any descriptor of this process, and waits until it is
// ready. If the server exports nothing detach prints the reason.
func detach(stderr io.Writer) error {
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("descriptors of the process that starts nvmecr serve (Linux 5.11 is needed): %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	stdout, ready, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdout.Close()
	cmd := exec.Command(self, "serve", "--until-idle")
	cmd.Dir = "/"
	cmd.Stdout = ready
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	ready.Close()
	if err != nil {
		return err
	}
	said, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return fmt.Errorf("nvmecr serve --until-idle did not start: %w: %s", err, said)
	}
	if said = strings.TrimSpace(said); said != exported && said != served {
		fmt.Fprintln(stderr, "files are not exported to the kernel of this host:", said)
	}
	return nil
}

// A server with --until-idle checks at this interval whether it is idle, and ends after idleChecks checks in a row.
const (
	idleInterval = time.Second
	idleChecks   = 10
)

// untilIdle returns when s has been idle for a while. A process that starts later starts another server.
func untilIdle(ctx context.Context, s *serve.Server, group string) {
	look := time.NewTicker(idleInterval)
	defer look.Stop()
	for idle := 0; idle < idleChecks; {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		if idle++; !s.Idle() || idle == idleChecks && !owner.Unattached(group) {
			idle = 0
		}
	}
}

// serve prints on stdout that it is ready, and serves until stdin ends, or until no process needs it.
func (o *serveOptions) serve(stdin io.Reader, stdout, stderr io.Writer) error {
	cfg, err := config.FromEnv(os.Getenv)
	if err != nil {
		return cli.UsageError{Err: err}
	}
	// Signals of the terminal are for the job, and this process ends after the job.
	signal.Ignore(syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE) // the reader of stdout may have been killed
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	group := store.LockGroup(cfg.Run)
	s := serve.New(cfg, func(format string, args ...any) { fmt.Fprintf(stderr, "nvmecr: "+format+"\n", args...) })
	if cfg.Copies != config.CopiesNone {
		s.Copy = newCopyReader(cfg).ReadAt
	}
	err = s.TakeOver()
	if o.untilIdle && errors.Is(err, owner.ErrServed) {
		fmt.Fprintln(stdout, served)
		return nil
	}
	if err == nil {
		if err := s.ServeChildren(); err != nil {
			fmt.Fprintf(stderr, "nvmecr: calls of processes whose parent has ended fail: %v\n", err)
		}
	}
	if err == nil && cfg.View == config.ViewJob && owner.OfRun(group) && !o.joined {
		err = o.serveTree(s)
	}
	if err != nil {
		return errors.Join(err, s.Close())
	}
	if _, err := fmt.Fprintln(stdout, export(s, cfg)); err != nil {
		return err
	}
	endPeer := func() {}
	if o.untilIdle || o.joined { // this host has no drainer
		endPeer = startPeer(cfg)
	}
	defer endPeer()
	if !o.untilIdle {
		killed := awaitEnd(ctx, stdin)
		endPeer()
		if !o.linger || !killed && becomesIdle(s) { // if nvmecr run was killed, its job may still run
			return s.Close()
		}
	}
	fmt.Fprintln(stdout, lingering) // not read if nvmecr run was killed
	if err := detachStdio(); err != nil {
		return errors.Join(err, s.Close())
	}
	untilIdle(ctx, s, group)
	err = s.Close()
	owner.RemoveUnattached(group)
	return err
}

// exitNotice is how long the server may take, also on a busy host, to notice that the processes of an ended job have
// ended.
const exitNotice = time.Second

// becomesIdle reports whether no process uses files of s, now or within exitNotice.
func becomesIdle(s *serve.Server) bool {
	for begin := time.Now(); !s.Idle(); time.Sleep(exitNotice / 100) {
		if time.Since(begin) > exitNotice {
			return false
		}
	}
	return true
}

// serveTree has s serve the tree of the job to processes of this host and, with --index-socket, of other hosts.
func (o *serveOptions) serveTree(s *serve.Server) error {
	if !o.indexSocket {
		return s.ServeTree(nil)
	}
	file := os.NewFile(indexSocket, "socket of the index")
	defer file.Close()
	others, err := net.FileListener(file)
	if err != nil {
		return err
	}
	return s.ServeTree(others)
}

// awaitEnd waits for the end of input. nvmecr run writes a line before it closes the input, so input without a line
// means that nvmecr run was killed.
func awaitEnd(ctx context.Context, input io.Reader) (killed bool) {
	ended := make(chan bool, 1)
	go func() {
		n, _ := io.Copy(io.Discard, input) // an error is an end, too
		ended <- n == 0
	}()
	select {
	case killed = <-ended:
	case <-ctx.Done():
	}
	return killed
}

// detachStdio redirects the standard descriptors to /dev/null. They may be pipes whose reader waits for their end.
func detachStdio() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for fd := range 3 {
		err = errors.Join(err, unix.Dup2(int(null.Fd()), fd))
	}
	return err
}

// Lines that serve prints: it exports the files; it serves and has nothing to export; it continues after the end of
// input.
const (
	exported  = "exported"
	served    = "serving"
	lingering = "lingering"
)

// export exports the files at the directory of the settings. It returns the line to print: exported, served, or an
// error.
func export(s *serve.Server, cfg *config.Config) string {
	if cfg.Export == "" {
		return served
	}
	if !mayMount() && !hasFusermount() {
		return "mounting needs root, or fusermount3 without no_new_privs"
	}
	err := makeViewDirectory(cfg.Export)
	if err == nil {
		err = s.Export(cfg.Export)
	}
	if err != nil {
		_ = os.Remove(cfg.Export) // may not exist
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return exported
}

package command

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

type drainOptions struct {
	levelReader
	all       bool
	following bool
	together  bool
	peer      bool
	every     string
	keep      int
	// keepStored is --keep of the run.
	keepStored string
	limit      string
}

func newDrain() *cobra.Command {
	o := &drainOptions{}
	cmd := &cobra.Command{
		Use:   "drain [flags] [PATTERN]",
		Short: "Copy checkpoints to a parallel file system",
		Long: `Copies the newest complete checkpoint to the directory --level2, also while the
job runs and after it died. PATTERN says which files are checkpoints, as for
nvmecr latest.

The copy is an ordinary directory, DIRECTORY/NAME/..., that any program can
read. It is renamed to NAME when it is complete, durable, and has been read back and
compared, so a partial copy never counts as a checkpoint. An interrupted copy is
continued by the next call.`,
		Example: `  nvmecr drain --level2 /lustre/me                    # the newest complete checkpoint
  nvmecr drain --level2 /lustre/me --all 'melt.{step}.*'
  nvmecr drain --name melt --level2 /lustre/me --keep 3 --limit 500M
  srun --ntasks-per-node=1 nvmecr drain --level2 /lustre/me --together    # all hosts copy`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, optionalArg(args))
		},
	}
	o.bindSets(cmd, "level2", "compress", "incremental", "copies")
	cli.AddSwitch(cmd.Flags(), &o.all, "all", "", "all complete checkpoints, not the newest one only [NVMECR_ALL]")
	cli.AddSwitch(cmd.Flags(), &o.following, "follow", "", "go on while the job runs, until interrupted or standard input ends [NVMECR_FOLLOW]")
	cmd.Flags().StringVar(&o.every, "every", "1", "with --follow copy each `N`th checkpoint only, or one in a time such as 30m [NVMECR_EVERY]")
	cmd.Flags().IntVar(&o.keep, "keep", 0, "of the checkpoints of the pattern in DIRECTORY keep the newest `N` only; all without it [NVMECR_KEEP]")
	cmd.Flags().StringVar(&o.keepStored, "keep-stored", "", "with --follow, in a run: keep the newest `N` in the store only, or as many as there is space for (auto)")
	_ = cmd.Flags().MarkHidden("keep-stored") // fails only for unknown flags
	cli.AddSwitch(cmd.Flags(), &o.together, "together", "", "in a job: each of its ranks copies a part, from its own host [NVMECR_TOGETHER]")
	cli.AddSwitch(cmd.Flags(), &o.peer, "peer", "", "in a run, on another host than its nvmecr drain --follow: copy a part of what that copies, until standard input ends")
	_ = cmd.Flags().MarkHidden("peer")
	cmd.Flags().StringVar(&o.limit, "limit", "", "copy no more than `SIZE` in a second, such as 500M [NVMECR_LIMIT]")
	return cmd
}

func (o *drainOptions) run(cmd *cobra.Command, pattern string) error {
	limit, err := o.check()
	if err != nil {
		return err
	}
	if o.peer {
		return o.copyAsPeer(cmd)
	}
	if o.following {
		return o.follow(cmd, pattern, limit)
	}
	defer o.close()
	return o.drain(cmd, pattern, limit)
}

func (o *drainOptions) drain(cmd *cobra.Command, pattern string, limit nvmf.Bytes) error {
	list, err := o.allLevels(cmd, pattern)
	if err == nil {
		err = o.requireLevel2()
	}
	if err == nil {
		err = checkIncremental(o.cfg, o.level)
	}
	if err == nil {
		err = o.checkIdle(cmd.Context())
	}
	if err != nil {
		return err
	}
	series, err := choose(list, "drain")
	if err != nil {
		return err
	}
	share, err := o.share()
	if err != nil {
		return err
	}
	src := newStoreSource(cmd.Context(), &o.reader)
	defer src.Close()
	pending := series.Stored()
	if len(pending) == 0 {
		return fmt.Errorf("store %q: no complete checkpoint matches %s", o.cfg.Name, series.Pattern)
	}
	all := true
	var last *drain.Set
	switch {
	case !o.all:
		slices.Reverse(pending)
	case o.keep > 0: // older ones would be removed again
		pending = pending[max(len(pending)-o.keep, 0):]
	}
	for _, c := range pending {
		put, err := o.copySet(cmd, src, series.Pattern, c, drain.Options{Limit: int64(limit), Share: share, Replace: o.keep > 0})
		if last = put; err != nil {
			o.fail(fmt.Errorf("%s: %w", c.Name, err))
			all = false
		}
		if !o.all && (!errors.Is(err, errUnreadable) || o.together) { // otherwise try the previous checkpoint
			break
		}
	}
	if all && o.keep > 0 && share.Number == 0 {
		if err := o.retain(o.level, series.Pattern, last); err != nil {
			o.fail(err)
		}
	}
	return o.end()
}

// share returns the part of each checkpoint that this process copies.
func (o *drainOptions) share() (drain.Share, error) {
	if !o.together {
		return drain.Share{}, nil
	}
	proc, err := store.ProcFromEnv(os.Getenv)
	if err == nil && !launched(proc) {
		err = cli.UsageError{Err: errors.New("--together: this is no rank of a job; start it with mpirun or srun, or leave --together out")}
	}
	return drain.Share{Number: proc.Rank, Of: proc.Size}, err
}

func (o *drainOptions) check() (limit nvmf.Bytes, err error) {
	if o.limit != "" {
		if limit, err = nvmf.ParseSize(o.limit); err != nil {
			return 0, cli.UsageError{Err: fmt.Errorf("--limit: %w", err)}
		}
	}
	if o.keep < 0 {
		return 0, cli.UsageError{Err: fmt.Errorf("--keep %d: a number of checkpoints to keep, or 0 for all", o.keep)}
	}
	return limit, nil
}

func (o *drainOptions) copySet(cmd *cobra.Command, src *storeSource, pattern string, c *drain.Checkpoint, how drain.Options) (*drain.Set, error) {
	quiet := how.Share.Number > 0 // process 0 prints
	if c.Drained != nil && quiet {
		return nil, nil
	}
	if c.Drained != nil {
		fmt.Fprintf(cmd.OutOrStdout(), "%s: is in %s\n", printable(c.Name), printable(c.Drained.Dir))
		return c.Drained, nil
	}
	s, err := o.newDrained(src, pattern, c)
	if err != nil {
		return nil, err
	}
	s.Compress = drain.Compression(o.cfg.Compress)
	var b bar
	b.begin(o.stderr, nvmf.Bytes(2*s.Size()), "copying, verifying "+printable(c.Name))
	how.Progress = func(copied, verified int64) { b.add(nvmf.Bytes(copied + verified)) }
	how.Incremental = o.cfg.Incremental
	src.readCopies(o.copies, c.Copied)
	put, err := o.level.Put(cmd.Context(), s, src, how)
	b.finish()
	if errors.Is(err, drain.ErrChanged) {
		err = fmt.Errorf("%w: the job is writing it again; run drain once more", err)
	}
	if !how.Replace && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) {
		err = fmt.Errorf("%w (with --keep N older checkpoints there are removed)", err)
	}
	if err != nil || quiet {
		return nil, err
	}
	if err = supersede(o.level, put); err == nil {
		more := ""
		if how.Incremental {
			more = fmt.Sprintf(", %s of it shared with the one before", size(nvmf.Bytes(put.Shared)))
		}
		if put.Hosts > 1 && how.Peers != "" {
			more += fmt.Sprintf(", by %d hosts", put.Hosts)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s of %s copied to %s%s\n", printable(c.Name), count(len(s.Files), "file"), size(nvmf.Bytes(s.Size())), printable(put.Dir), more)
	}
	return put, err
}

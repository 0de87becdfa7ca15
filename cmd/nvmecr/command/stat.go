package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

type statOptions struct {
	reader
	json bool
}

func newStat() *cobra.Command {
	o := &statOptions{}
	cmd := &cobra.Command{
		Use:   "stat [flags] [PATH]",
		Short: "Show the state of the partitions, or of a file",
		Long: `Without PATH: the target of each rank's partition, how full it is, the state of its
log, and, on targets other than the embedded one, the run in progress. With PATH: the attributes of the file in every rank that has it.`,
		Example: `  nvmecr stat
  nvmecr stat --json --rank 0 /melt.600.0`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.open(cmd); err != nil {
				return err
			}
			if len(args) == 1 {
				return o.files(cmd.Context(), cmd.OutOrStdout(), o.pathInStore(args[0]))
			}
			return o.store(cmd.Context(), cmd.OutOrStdout())
		},
	}
	o.bind(cmd)
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON [NVMECR_JSON]")
	return cmd
}

// A partition is the JSON of a partition. Sizes are in bytes.
type partition struct {
	Rank      int        `json:"rank"` // -1: the singleton partition
	Target    string     `json:"target"`
	Start     nvmf.Bytes `json:"start"`
	Length    nvmf.Bytes `json:"length"`
	Formatted bool       `json:"formatted"`
	Broken    bool       `json:"broken,omitempty"` // cannot be read

	Capacity    nvmf.Bytes `json:"capacity,omitempty"` // of the data area
	Free        nvmf.Bytes `json:"free,omitempty"`
	Hugeblock   nvmf.Bytes `json:"hugeblock,omitempty"`
	Files       uint64     `json:"files,omitempty"`
	LogPages    uint64     `json:"log_pages,omitempty"`
	LogFree     uint64     `json:"log_free,omitempty"`
	StateBytes  nvmf.Bytes `json:"state_bytes,omitempty"`
	StateMax    nvmf.Bytes `json:"state_max,omitempty"`
	Generation  uint64     `json:"generation,omitempty"` // mounts for writing
	Checkpoints uint64     `json:"checkpoints,omitempty"`
	// Namesakes are paths of files that another rank has, too.
	Namesakes []string `json:"namesakes,omitempty"`
}

func (o *statOptions) store(ctx context.Context, w io.Writer) error {
	infos, err := store.Partitions(ctx, o.cfg)
	if err != nil {
		return err
	}
	var list []partition
	for _, info := range infos {
		if o.rank != allRanks && info.Rank != o.rank {
			continue
		}
		list = append(list, partition{
			Rank: info.Rank, Target: info.Target.String(),
			Start: info.Segment.Start, Length: info.Segment.Length,
		})
	}
	owners := map[string][]int{} // ranks that have a file of that path
	o.eachOf(ctx, o.partitions(), func(rank int, fs vfs.FS) error {
		err := walk(fs, "/", true, func(name string, a microfs.Attr) error {
			if a.Mode&syscall.S_IFMT == syscall.S_IFREG && rank != parttable.Singleton && !o.tree {
				owners[name] = append(owners[name], rank)
			}
			return nil
		})
		if err != nil && !errors.Is(err, syscall.ENOENT) { // removed meanwhile
			return o.explain(err, rank, "/")
		}
		for i := range list {
			if list[i].Rank == rank {
				list[i].fill(fs.StatFS())
			}
		}
		return nil
	})
	for i := range list {
		list[i].Broken = o.broken[list[i].Rank]
	}
	same := namesakes(owners)
	for _, name := range same {
		for i := range list {
			if slices.Contains(owners[name], list[i].Rank) {
				list[i].Namesakes = append(list[i].Namesakes, name)
			}
		}
	}
	if o.json {
		err = printJSON(w, list)
	} else {
		err = errors.Join(o.printPartitions(w, list), printNamesakes(w, same, owners), o.printRun(ctx, w))
	}
	return errors.Join(err, o.end())
}

func (p *partition) fill(s microfs.StatFS) {
	p.Formatted = true
	p.Capacity = nvmf.Bytes(s.Blocks) * s.Hugeblock
	p.Free = nvmf.Bytes(s.Free) * s.Hugeblock
	p.Hugeblock, p.Files = s.Hugeblock, s.Files
	p.LogPages, p.LogFree = s.LogPages, s.LogFree
	p.StateBytes, p.StateMax = s.StateBytes, s.StateMax
	p.Generation, p.Checkpoints = s.Generation, s.Checkpoints
}

// used formats how much of all partitions is in use.
func used(list []partition) string {
	var used, all nvmf.Bytes
	for _, p := range list {
		if !p.Formatted {
			all += p.Length
		}
		used, all = used+p.Capacity-p.Free, all+p.Capacity
	}
	return fmt.Sprintf("%s of %s are used", used, all)
}

func (o *statOptions) printPartitions(w io.Writer, list []partition) error {
	fmt.Fprintf(w, "store %q, %s: %s\n", o.cfg.Name, count(len(list), "partition"), used(list))
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "RANK\tUSED\tOF\tFILES\tLOG PAGES\tSTATE\tMOUNTS\tTARGET")
	for _, p := range list {
		if !p.Formatted {
			state := "nothing written yet"
			if p.Broken {
				state = "cannot be read"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t\t\t\t\t%s\n", o.rankColumn(p.Rank), state, p.Length, p.Target)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d of %d\t%s of %s\t%d\t%s\n", o.rankColumn(p.Rank),
			p.Capacity-p.Free, p.Capacity, p.Files, p.LogPages-p.LogFree, p.LogPages,
			p.StateBytes, p.StateMax, p.Generation, p.Target)
	}
	return t.Flush()
}

// printRun prints the run in progress, from its run record.
func (o *statOptions) printRun(ctx context.Context, w io.Writer) error {
	run, err := store.InProgress(ctx, o.cfg)
	if err == nil && run != nil {
		_, err = fmt.Fprintf(w, "run in progress: %s; last heartbeat %s by its clock\n", printable(run.String()), run.Written.Local().Format(time.DateTime))
	}
	return err
}

// namesakes returns the paths that several ranks have files at. A program that expects one shared file there (N-1)
// finds in each rank what that rank wrote.
func namesakes(owners map[string][]int) (paths []string) {
	for name, ranks := range owners {
		if len(ranks) > 1 {
			paths = append(paths, name)
		}
	}
	slices.Sort(paths)
	return paths
}

// maxNamesakes is the maximum number of paths printed. JSON has all.
const maxNamesakes = 10

func printNamesakes(w io.Writer, paths []string, owners map[string][]int) error {
	if len(paths) == 0 {
		return nil
	}
	fmt.Fprintf(w, "%s in several ranks, each of which has a file of its own:\n", count(len(paths), "path"))
	for _, name := range paths[:min(len(paths), maxNamesakes)] {
		fmt.Fprintf(w, "  %s: %s\n", printable(name), count(len(owners[name]), "rank"))
	}
	if more := len(paths) - maxNamesakes; more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
	return nil
}

func (o *statOptions) files(ctx context.Context, w io.Writer, name string) error {
	var entries []entry
	o.each(ctx, func(rank int, fs vfs.FS) error {
		a, err := fs.Stat(microfs.RootIno, name, false)
		if errors.Is(err, syscall.ENOENT) {
			return nil
		}
		if err == nil {
			entries = append(entries, newEntry(rank, name, a))
		}
		return o.explain(err, rank, name)
	})
	if len(entries) == 0 {
		return o.missing(name)
	}
	if o.json {
		return errors.Join(printJSON(w, entries), o.end())
	}
	for _, e := range entries {
		if !o.ofTree() {
			fmt.Fprintf(w, "%s: ", o.rankName(e.Rank))
		}
		fmt.Fprintf(w, "%s\n  mode      %s, uid %d, gid %d\n  size      %d bytes\n  created   %s\n  modified  %s\n  complete  %s\n",
			printable(e.Path), e.ModeText, e.UID, e.GID, e.Size,
			e.Created.Local().Format("2006-01-02 15:04:05.000000"),
			e.Modified.Local().Format("2006-01-02 15:04:05.000000"), completeness(&e))
	}
	return o.end()
}

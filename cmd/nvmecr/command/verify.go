package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/tree/wire"
)

type verifyOptions struct {
	reader
	json     bool
	repair   bool
	names    map[microfs.Ino]string // names of the files of a tree; nil until needed
	repairer *repairer              // with --repair; nil until needed
}

func newVerify() *cobra.Command {
	o := &verifyOptions{}
	cmd := &cobra.Command{
		Use:   "verify [flags]",
		Short: "Compare every byte of every file with its checksum",
		Long: `Compares all files of the ranks, or of one of them, and their copies (--copies) with their checksums,
and lists every damaged part of a file. It changes nothing and may run while the
job runs. On a store made with --data-checksum=off it can only check whether
everything can be read.

With --repair damaged parts of checkpoints are restored from their copies, and those of copies from the store. It
is refused while a run of the store is in progress on any host (--takeover skips that check).

The exit status is 0 if all is well (after the repair, if there was one), 1 if something is damaged or cannot be
read.`,
		Example: `  nvmecr verify
  nvmecr verify --name melt --rank 3
  nvmecr verify --name melt --repair`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.open(cmd); err != nil {
				return err
			}
			return o.verify(cmd)
		},
	}
	o.bind(cmd, "unfenced", "takeover")
	cli.AddSwitch(cmd.Flags(), &o.repair, "repair", "", "restore damaged parts from copies [NVMECR_REPAIR]")
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON [NVMECR_JSON]")
	return cmd
}

// A verifyReport is the JSON of a verification.
type verifyReport struct {
	Name     string       `json:"name"`
	Bytes    nvmf.Bytes   `json:"bytes"`
	Seconds  float64      `json:"seconds"`
	Damaged  int          `json:"damaged"`            // files
	Repaired int          `json:"repaired,omitempty"` // files that were damaged
	Ranks    []verifyRank `json:"ranks"`
}

type verifyRank struct {
	Rank       int        `json:"rank"`             // -1: the singleton partition; -4: a copy area
	Target     string     `json:"target,omitempty"` // of a copy area
	Files      int        `json:"files"`
	Bytes      nvmf.Bytes `json:"bytes"`
	Unverified bool       `json:"unverified,omitempty"` // there are no checksums
	Damaged    []damage   `json:"damaged"`
	More       int        `json:"more,omitempty"`
}

type damage struct {
	microfs.BadRange
	Cause string `json:"cause"`
	File  string `json:"file,omitempty"` // file of the tree that a damaged shard belongs to
	// Repaired: the part has been restored. Otherwise, with --repair, Lost is the reason.
	Repaired bool   `json:"repaired,omitempty"`
	Lost     string `json:"lost,omitempty"`
}

// A volume is a file system to verify: the partition of a rank, or the copy area of a target.
type volume struct {
	rank   int // a rank, parttable.Singleton, or parttable.Copies
	target int // of a copy area
}

// volumes returns the volumes to verify.
func (o *verifyOptions) volumes() (list []volume) {
	for _, rank := range o.partitions() {
		list = append(list, volume{rank: rank})
	}
	if o.areas && o.rank == allRanks {
		for t := range o.cfg.Targets {
			list = append(list, volume{parttable.Copies, t})
		}
	}
	return list
}

func (o *verifyOptions) volumeName(v volume) string {
	if v.rank == parttable.Copies {
		return fmt.Sprintf("copies on target %s", o.cfg.Targets[v.target])
	}
	return o.rankName(v.rank)
}

// open mounts the volume.
func (v volume) open(ctx context.Context, r *reader, opts store.Options) (*store.Partition, error) {
	if v.rank == parttable.Copies {
		return store.OpenCopies(ctx, r.cfg, v.target, opts)
	}
	return store.Open(ctx, r.cfg, store.Proc{Rank: v.rank, Size: r.size}, opts)
}

func (o *verifyOptions) verify(cmd *cobra.Command) error {
	if o.repair {
		unlock, err := o.takeStore(cmd.Context())
		if err != nil {
			return err
		}
		defer unlock()
	}
	begin, total := time.Now(), verifyReport{Name: o.cfg.Name, Ranks: []verifyRank{}}
	for _, v := range o.volumes() {
		err := o.volume(cmd, v, &total)
		switch {
		case err == nil, errors.Is(err, microfs.ErrUnformatted):
			continue
		case v.rank == parttable.Copies && (errors.Is(err, parttable.ErrNoTable) || errors.Is(err, store.ErrNoCopies)):
			continue
		}
		o.fail(fmt.Errorf("%s: %w", o.volumeName(v), err))
		if errors.Is(err, nvmf.ErrUnreachable) || cmd.Context().Err() != nil {
			break
		}
	}
	o.repairer.close()
	return o.conclude(cmd.OutOrStdout(), &total, begin)
}

// volume verifies a volume, and with --repair repairs the damage.
func (o *verifyOptions) volume(cmd *cobra.Command, v volume, total *verifyReport) error {
	r, err := o.volumeBar(cmd, v)
	if err != nil {
		return err
	}
	damaged := o.damaged(cmd.Context(), v.rank, r)
	if o.repair && len(damaged) > 0 {
		if o.repairer == nil {
			o.repairer = newRepairer(cmd, &o.reader)
		}
		o.repairer.repair(cmd.Context(), v, damaged)
	}
	report := total.add(v, r, damaged)
	if v.rank == parttable.Copies {
		report.Target = o.cfg.Targets[v.target].String()
	}
	if !o.json {
		o.print(cmd.OutOrStdout(), v, report)
	}
	return nil
}

func (o *verifyOptions) conclude(w io.Writer, total *verifyReport, begin time.Time) error {
	took := time.Since(begin)
	total.Seconds = took.Seconds()
	var err error
	if o.json {
		err = printJSON(w, total)
	} else {
		o.summary(w, total, took)
	}
	if total.Damaged > 0 {
		o.failed = true
		o.recordVerified(time.Time{}) // what an earlier verification found no longer holds
	}
	if !o.failed && o.rank == allRanks && !total.unverified() {
		o.recordVerified(begin)
	}
	return errors.Join(err, o.end())
}

func (t *verifyReport) unverified() bool {
	return slices.ContainsFunc(t.Ranks, func(r verifyRank) bool { return r.Unverified })
}

// recordVerified records the time for `nvmecr checkpoints`, the zero time to forget an earlier one, if this host has a state directory of the
// store.
func (o *verifyOptions) recordVerified(when time.Time) {
	if dir, err := store.FindStateDir(o.cfg.Name); err == nil && dir.Recorded() {
		_ = dir.RecordVerified(when) // an error of the record does not fail the command
	}
}

// damaged lists the damaged parts, in a tree with the names of files.
func (o *verifyOptions) damaged(ctx context.Context, rank int, r *microfs.VerifyReport) []damage {
	list := []damage{}
	for _, b := range r.Bad {
		d := damage{BadRange: b, Cause: b.Cause.Error()}
		if shard, ok := wire.ParseShard(strings.TrimPrefix(b.Path, "/")); ok && o.tree && rank != parttable.Singleton {
			d.File = o.nameOf(ctx, shard.Ino)
		}
		list = append(list, d)
	}
	return list
}

// nameOf returns a path of a file of the tree; "" if it has none, or the index cannot be read.
func (o *verifyOptions) nameOf(ctx context.Context, ino microfs.Ino) string {
	if o.names == nil {
		o.names = map[microfs.Ino]string{}
		singleton, err := store.Open(ctx, o.cfg, store.Proc{Rank: parttable.Singleton}, store.Options{ReadOnly: true})
		if err != nil {
			return ""
		}
		defer singleton.Close() // only read
		_ = walk(vfs.Microfs(singleton.FS), "/", true, func(name string, a microfs.Attr) error {
			o.names[a.Ino] = name
			return nil
		})
	}
	return o.names[ino]
}

func (t *verifyReport) add(v volume, r *microfs.VerifyReport, damaged []damage) *verifyRank {
	t.Bytes += r.Bytes
	report := verifyRank{Rank: v.rank, Files: r.Files, Bytes: r.Bytes, Unverified: r.Unverified, Damaged: damaged, More: r.More}
	bad, repaired := report.count()
	t.Damaged, t.Repaired = t.Damaged+bad, t.Repaired+repaired
	t.Ranks = append(t.Ranks, report)
	return &t.Ranks[len(t.Ranks)-1]
}

// count returns how many files are damaged, and how many damaged ones have been repaired.
func (v *verifyRank) count() (bad, repaired int) {
	files := map[microfs.Ino]bool{} // whether they are repaired
	for i := range v.Damaged {
		d := &v.Damaged[i]
		before, known := files[d.Ino]
		files[d.Ino] = d.Repaired && (before || !known)
	}
	for _, ok := range files {
		if ok {
			repaired++
		} else {
			bad++
		}
	}
	if v.More > 0 {
		bad = max(bad, 1)
	}
	return bad, repaired
}

// volumeBar verifies a volume, with a progress bar on terminals.
func (o *verifyOptions) volumeBar(cmd *cobra.Command, v volume) (*microfs.VerifyReport, error) {
	var b bar
	defer b.finish()
	what := o.volumeName(v)
	if v.rank != parttable.Copies {
		what = fmt.Sprintf("%s of %d", what, o.size)
	}
	opts := store.VerifyOptions{
		Total:    func(n nvmf.Bytes) { b.begin(o.stderr, n, what) },
		Progress: func(n nvmf.Bytes) { b.add(n) },
	}
	if v.rank == parttable.Copies {
		return store.VerifyCopies(cmd.Context(), o.cfg, v.target, opts)
	}
	return store.Verify(cmd.Context(), o.cfg, store.Proc{Rank: v.rank, Size: o.size}, opts)
}

func (o *verifyOptions) print(w io.Writer, v volume, r *verifyRank) {
	name := o.volumeName(v)
	for i := range r.Damaged {
		d := &r.Damaged[i]
		fmt.Fprintf(w, "%s: %s: bytes %d to %d (%s at LBA %d): %s\n", name, printable(cmp.Or(d.File, d.Path)),
			d.Offset, d.Offset+d.Length-1, size(nvmf.Bytes(d.Length)), d.LBA, d.describe())
	}
	if r.More > 0 {
		fmt.Fprintf(w, "%s: and %d more\n", name, r.More)
	}
	verdict := "verified"
	switch bad, repaired := r.count(); {
	case bad > 0 && repaired > 0:
		verdict = fmt.Sprintf("read, %s damaged, %d repaired", count(bad, "file"), repaired)
	case bad > 0:
		verdict = "read, " + count(bad, "file") + " damaged"
	case repaired > 0:
		verdict = "read, " + count(repaired, "file") + " repaired"
	case r.Unverified:
		verdict = "read; nothing can be verified, the store was made with --data-checksum=off"
	}
	fmt.Fprintf(w, "%s: %s, %s %s\n", name, count(r.Files, "file"), size(r.Bytes), verdict)
}

// describe describes the damage, and whether it was repaired.
func (d *damage) describe() string {
	what := "damaged"
	if damage := new(microfs.DamageError); !errors.As(d.BadRange.Cause, &damage) {
		what = "cannot be read: " + d.Cause
	} else if damage.Cause != nil {
		what = "cannot be read: " + damage.Cause.Error()
	}
	if side := new(store.SideError); errors.As(d.BadRange.Cause, &side) {
		what += fmt.Sprintf(" on target %s of two", side.Target)
	}
	switch {
	case d.Repaired:
		what += ", and restored"
	case d.Lost != "":
		what += ", and not repaired: " + d.Lost
	}
	return what
}

func (o *verifyOptions) summary(w io.Writer, t *verifyReport, took time.Duration) {
	verdict := "all data matches its checksums"
	switch {
	case t.Damaged > 0:
		verdict = count(t.Damaged, "damaged file")
	case o.failed:
		verdict = "not all could be read"
	case t.Repaired > 0:
		verdict = "all data matches its checksums, " + count(t.Repaired, "file") + " repaired"
	default:
		for _, r := range t.Ranks {
			if r.Unverified {
				verdict = "there are no checksums to compare with"
			}
		}
	}
	rate := nvmf.Bytes(float64(t.Bytes) / max(took.Seconds(), 1e-6))
	fmt.Fprintf(w, "store %q: read %s in %.1f s (%s/s): %s\n", o.cfg.Name, size(t.Bytes), took.Seconds(), size(rate), verdict)
}

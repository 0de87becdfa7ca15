package command

import (
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
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/posixshim"
	"nvmecr/tree/wire"
)

type verifyOptions struct {
	reader
	json  bool
	names map[microfs.Ino]string // of a tree, once they are needed
}

func newVerify() *cobra.Command {
	o := &verifyOptions{}
	cmd := &cobra.Command{
		Use:   "verify [flags]",
		Short: "Read every byte of every file against its checksum",
		Long: `Reads all that the ranks, or one of them, have written, against its checksums,
and names every damaged part of a file. It changes nothing and may run while the
job does. On a store made with --data-checksum=off it can only tell whether
everything can be read.

The exit status is 0 if all is well, 1 if something is damaged or cannot be
read.`,
		Example: `  nvmecr verify
  nvmecr verify --name melt --rank 3`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.open(cmd); err != nil {
				return err
			}
			return o.verify(cmd)
		},
	}
	o.bind(cmd)
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON [NVMECR_JSON]")
	return cmd
}

// A verifyReport is the JSON of a run.
type verifyReport struct {
	Name    string       `json:"name"`
	Bytes   nvmf.Bytes   `json:"bytes"`
	Seconds float64      `json:"seconds"`
	Damaged int          `json:"damaged"` // files
	Ranks   []verifyRank `json:"ranks"`
}

type verifyRank struct {
	Rank       int        `json:"rank"` // -1: the solo partition
	Files      int        `json:"files"`
	Bytes      nvmf.Bytes `json:"bytes"`
	Unverified bool       `json:"unverified,omitempty"` // there are no checksums
	Damaged    []damage   `json:"damaged"`
	More       int        `json:"more,omitempty"`
}

type damage struct {
	microfs.BadRange
	Cause string `json:"cause"`
	File  string `json:"file,omitempty"` // of the tree, of which this one has bytes
}

func (o *verifyOptions) verify(cmd *cobra.Command) error {
	begin, total := time.Now(), verifyReport{Name: o.cfg.Name, Ranks: []verifyRank{}}
	for _, rank := range o.partitions() {
		r, err := o.rankBar(cmd, rank)
		if errors.Is(err, microfs.ErrUnformatted) {
			continue
		}
		if err != nil {
			o.fail(fmt.Errorf("%s: %w", o.rankName(rank), err))
			if errors.Is(err, nvmf.ErrUnreachable) || cmd.Context().Err() != nil {
				break
			}
			continue
		}
		damaged := o.damaged(cmd.Context(), rank, r)
		total.add(rank, r, damaged)
		if !o.json {
			o.print(cmd.OutOrStdout(), rank, r, damaged)
		}
	}
	took := time.Since(begin)
	total.Seconds = took.Seconds()
	var err error
	if o.json {
		err = printJSON(cmd.OutOrStdout(), total)
	} else {
		o.summary(cmd.OutOrStdout(), &total, took)
	}
	if total.Damaged > 0 {
		o.failed = true
	}
	if !o.failed && o.rank == allRanks && !total.unverified() {
		o.remember(begin)
	}
	return errors.Join(err, o.end())
}

func (t *verifyReport) unverified() bool {
	return slices.ContainsFunc(t.Ranks, func(r verifyRank) bool { return r.Unverified })
}

// remember has `nvmecr checkpoints` say when the store was verified, where this host knows the store.
func (o *verifyOptions) remember(when time.Time) {
	if dir, err := store.FindStateDir(o.cfg.Name); err == nil && dir.Recorded() {
		_ = dir.RecordVerified(when) // who may only read it verifies nevertheless
	}
}

// damaged lists what is, in a tree with the names of its files.
func (o *verifyOptions) damaged(ctx context.Context, rank int, r *microfs.VerifyReport) []damage {
	list := []damage{}
	for _, b := range r.Bad {
		d := damage{BadRange: b, Cause: b.Cause.Error()}
		if shard, ok := wire.ParseShard(strings.TrimPrefix(b.Path, "/")); ok && o.tree && rank != parttable.Solo {
			d.File = o.nameOf(ctx, shard.Ino)
		}
		list = append(list, d)
	}
	return list
}

// nameOf returns a path of a file of the tree; "" if it has none, or the index cannot be read, of which its own verification tells.
func (o *verifyOptions) nameOf(ctx context.Context, ino microfs.Ino) string {
	if o.names == nil {
		o.names = map[microfs.Ino]string{}
		solo, err := store.Open(ctx, o.cfg, store.Place{Rank: parttable.Solo}, store.Options{ReadOnly: true})
		if err != nil {
			return ""
		}
		defer solo.Close() // it is only read
		_ = walk(posixshim.Microfs(solo.FS), "/", true, func(name string, a microfs.Attr) error {
			o.names[a.Ino] = name
			return nil
		})
	}
	return o.names[ino]
}

func (t *verifyReport) add(rank int, r *microfs.VerifyReport, damaged []damage) {
	v := verifyRank{Rank: rank, Files: r.Files, Bytes: r.Bytes, Unverified: r.Unverified, Damaged: damaged, More: r.More}
	t.Bytes += r.Bytes
	t.Damaged += damagedFiles(r)
	t.Ranks = append(t.Ranks, v)
}

func damagedFiles(r *microfs.VerifyReport) int {
	files := map[microfs.Ino]bool{}
	for i := range r.Bad {
		files[r.Bad[i].Ino] = true
	}
	return len(files)
}

// rankBar verifies one rank, with a bar where there is a terminal to draw it on.
func (o *verifyOptions) rankBar(cmd *cobra.Command, rank int) (*microfs.VerifyReport, error) {
	var b bar
	defer b.finish()
	return store.Verify(cmd.Context(), o.cfg, store.Place{Rank: rank, Size: o.size}, store.VerifyOptions{
		Total:    func(n nvmf.Bytes) { b.begin(o.stderr, n, fmt.Sprintf("%s of %d", o.rankName(rank), o.size)) },
		Progress: func(n nvmf.Bytes) { b.add(n) },
	})
}

func (o *verifyOptions) print(w io.Writer, rank int, r *microfs.VerifyReport, damaged []damage) {
	for i := range damaged {
		b := &damaged[i].BadRange
		name := b.Path
		if file := damaged[i].File; file != "" {
			name = file
		}
		what := "damaged"
		if damage := new(microfs.DamageError); !errors.As(b.Cause, &damage) {
			what = "cannot be read: " + b.Cause.Error()
		} else if damage.Cause != nil {
			what = "cannot be read: " + damage.Cause.Error()
		}
		fmt.Fprintf(w, "%s: %s: bytes %d to %d (%s at LBA %d): %s\n", o.rankName(rank), printable(name),
			b.Offset, b.Offset+b.Length-1, size(nvmf.Bytes(b.Length)), b.LBA, what)
	}
	if r.More > 0 {
		fmt.Fprintf(w, "%s: and %d more\n", o.rankName(rank), r.More)
	}
	verdict := "verified"
	switch n := damagedFiles(r); {
	case n > 0:
		verdict = "read, " + count(n, "file") + " damaged"
	case r.Unverified:
		verdict = "read; nothing can be verified, the store was made with --data-checksum=off"
	}
	fmt.Fprintf(w, "%s: %s, %s %s\n", o.rankName(rank), count(r.Files, "file"), size(r.Bytes), verdict)
}

func (o *verifyOptions) summary(w io.Writer, t *verifyReport, took time.Duration) {
	verdict := "all of it as it was written"
	switch {
	case t.Damaged > 0:
		verdict = count(t.Damaged, "damaged file")
	case o.failed:
		verdict = "not all could be read"
	default:
		for _, r := range t.Ranks {
			if r.Unverified {
				verdict = "without checksums to verify it"
			}
		}
	}
	rate := nvmf.Bytes(float64(t.Bytes) / max(took.Seconds(), 1e-6))
	fmt.Fprintf(w, "store %q: read %s in %.1f s (%s/s): %s\n", o.cfg.Name, size(t.Bytes), took.Seconds(), size(rate), verdict)
}

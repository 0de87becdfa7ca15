package store

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// TestNewRun checks that ids and reservation keys of runs increase, also if the clock was set back.
func TestNewRun(t *testing.T) {
	var last uuid.UUID
	for range 100 {
		run, err := NewRun(last)
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Compare(run[:], last[:]))
		require.Greater(t, reservationKey(run), reservationKey(last))
		require.Equal(t, uuid.Version(7), run.Version())
		last = run
	}
	future := uuid.MustParse("0fffffff-ffff-7abc-8000-000000000000")
	run, err := NewRun(future)
	require.NoError(t, err)
	require.Greater(t, reservationKey(run), reservationKey(future), "the clock was set back")
	require.Equal(t, uuid.Version(7), run.Version())
}

// TestEnded checks which processes are known to have ended: dead ones of this host and PID namespace, and those of
// this host before a reboot.
func TestEnded(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	require.NoError(t, cmd.Start())
	me := self(uuid.Nil)
	require.NotEqual(t, uuid.Nil, me.Boot)
	start, err := started(cmd.Process.Pid)
	require.NoError(t, err)
	alive := me
	alive.PID, alive.Start = uint32(cmd.Process.Pid), start
	assert.False(t, ended(me, me))
	assert.False(t, ended(alive, me))
	change := func(f func(h *microfs.Holder)) microfs.Holder { h := alive; f(&h); return h }
	reused := change(func(h *microfs.Holder) { h.Start-- })
	assert.True(t, ended(reused, me), "another process has its number")
	container := change(func(h *microfs.Holder) { h.PIDSpace++; h.Start-- })
	assert.False(t, ended(container, me), "its number means nothing here")
	elsewhere := change(func(h *microfs.Holder) { h.Boot, h.Host = uuid.New(), "other" })
	assert.False(t, ended(elsewhere, me))
	assert.False(t, ended(microfs.Holder{}, me), "not known")
	rebooted, here := change(func(h *microfs.Holder) { h.Boot = uuid.New() }), me
	rebooted.Machine, rebooted.PIDSpace = uuid.New(), initialPIDSpace
	here.Machine, here.PIDSpace = rebooted.Machine, initialPIDSpace
	assert.True(t, ended(rebooted, here))
	here.Machine = uuid.New()
	assert.False(t, ended(rebooted, here))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	assert.True(t, ended(alive, me))
	assert.False(t, ended(me, me))
}

// TestStartedZombie checks that a zombie counts as ended.
func TestStartedZombie(t *testing.T) {
	cmd := exec.Command("true")
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool {
		_, err := started(cmd.Process.Pid)
		return errors.Is(err, errEnded)
	}, hang, time.Millisecond)
	_ = cmd.Wait()
	_, err := started(os.Getpid())
	require.NoError(t, err)
}

// TestFence checks that a run can reserve a target after an earlier run did, and that the earlier run is then
// refused.
func TestFence(t *testing.T) {
	cfg, _ := newServed(t, 4*nvmf.MiB)
	dev, err := connect(ctx, cfg, cfg.Targets[0], false)
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	first, second := *cfg, *cfg
	first.Run, err = NewRun(uuid.Nil)
	require.NoError(t, err)
	second.Run, err = NewRun(first.Run)
	require.NoError(t, err)
	for _, c := range []*config.Config{&first, &second} {
		reserve, err := fence(ctx, c, dev)
		require.NoError(t, err)
		require.NotNil(t, reserve)
	}
	_, err = fence(ctx, &first, dev)
	require.ErrorIs(t, err, nvmf.ErrFenced)
}

// TestMayTakeOver checks which partitions a run may mount although their last writer did not unmount them, and how
// long commands of that writer can still be executed.
func TestMayTakeOver(t *testing.T) {
	t.Parallel()
	me := self(uuid.MustParse("01900000-0000-7000-8000-000000000002"))
	foreign := microfs.Claim{Holder: microfs.Holder{Host: "other", Boot: uuid.New(), PID: 1, Run: uuid.MustParse("01900000-0000-7000-8000-000000000001")}}
	sameRun := foreign
	sameRun.Run = me.Run
	closed := sameRun // it was unmounted, but one of its deallocations may still be executed
	closed.Released, closed.Late = true, true
	dead := microfs.Claim{Holder: me}
	dead.Start--
	for _, tc := range []struct {
		name             string
		last             microfs.Claim
		fenced, unfenced bool
		allowed          bool
		local            bool // the device is a file: commands in flight end with their process
		late             microfs.Late
	}{
		{"of another host, fenced off", foreign, true, false, true, false, microfs.LateNone},
		{"of another host, no fence", foreign, false, false, false, false, microfs.LateNone},
		{"of another host, no fence, --unfenced", foreign, false, true, true, false, microfs.LateAny},
		{"of another host and this run", sameRun, true, false, false, false, microfs.LateNone},
		{"of another host and this run, --unfenced", sameRun, true, true, true, false, microfs.LateAny},
		{"of another host and this run, closed", closed, true, false, true, false, microfs.LateUnlikely},
		{"of another host, closed, no fence", closed, false, false, true, false, microfs.LateUnlikely},
		{"dead", dead, false, false, true, false, microfs.LateUnlikely},
		{"dead, on a file", dead, false, false, true, true, microfs.LateNone},
		{"ours, from an attempt to mount that failed", microfs.Claim{Holder: me}, true, false, true, false, microfs.LateUnlikely},
		{"not known", microfs.Claim{}, false, false, false, false, microfs.LateNone},
		{"not known, fenced off", microfs.Claim{}, true, false, true, false, microfs.LateNone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := config.Default()
			cfg.Unfenced = tc.unfenced
			o := &opener{cfg: cfg, opts: Options{Logf: t.Logf}}
			late, err := o.mayTakeOver(me, tc.fenced, tc.local)(&tc.last)
			if tc.allowed {
				assert.Equal(t, tc.late, late)
			}
			if tc.allowed {
				require.NoError(t, err)
				return
			}
			var held *HeldError
			require.ErrorAs(t, err, &held)
			require.ErrorIs(t, err, syscall.EBUSY)
			require.Contains(t, err.Error(), "--unfenced")
		})
	}
}

// TestHeldElsewhere checks a partition that a process of another host mounted and did not unmount. It is unknown
// whether that process lives, so only readers and --unfenced may open the partition.
func TestHeldElsewhere(t *testing.T) {
	cfg := newStore(t, 8*nvmf.MiB)
	mustOpen(t, cfg, 1)
	heldElsewhere(t, cfg)

	_, err := Open(ctx, cfg, Proc{0, 1, ""}, Options{})
	var held *HeldError
	require.ErrorAs(t, err, &held)
	require.Contains(t, err.Error(), "process 99 of host node7")
	require.ErrorAs(t, Reset(ctx, cfg), &held, "nor may the partition be another's: the process would write there")
	_, err = Release(ctx, cfg)
	require.ErrorAs(t, err, &held)
	reader, err := Open(ctx, cfg, Proc{0, 1, ""}, Options{ReadOnly: true})
	require.NoError(t, err, "reading takes nothing over")
	require.NoError(t, reader.Close())
	cfg.Unfenced = true
	p, err := Open(ctx, cfg, Proc{0, 1, ""}, Options{})
	require.NoError(t, err)
	_, err = p.FS.Stat(microfs.RootIno, "acknowledged", false)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	cfg.Unfenced = false
	p, err = Open(ctx, cfg, Proc{0, 1, ""}, Options{})
	require.NoError(t, err, "it was closed")
	require.NoError(t, p.Close())
	require.NoError(t, Reset(ctx, cfg))
}

// heldElsewhere mounts the only partition as a process of another host, and does not unmount it.
func heldElsewhere(t *testing.T, cfg *config.Config) {
	dev, err := connect(ctx, cfg, cfg.Targets[0], false)
	require.NoError(t, err)
	table, err := parttable.Read(ctx, dev)
	require.NoError(t, err)
	e, _ := table.Entry(0)
	fs, err := microfs.Mount(ctx, dev, microfs.Segment{Start: e.Start, Length: e.Length}, microfs.Options{
		Generation: table.Generation, Holder: microfs.Holder{Host: "node7", Boot: uuid.New(), PID: 99},
	})
	require.NoError(t, err)
	require.NoError(t, fs.Mkdir(microfs.RootIno, "acknowledged", 0o700))
	require.NoError(t, dev.Close())
}

// TestReleaseHeld checks that Release fails if a process of another host may still write to the store. The end of the
// reservation would let that process write. Reset must succeed, since its run has reserved the target.
func TestReleaseHeld(t *testing.T) {
	cfg, _ := newServed(t, 8*nvmf.MiB)
	mustOpen(t, cfg, 1)
	heldElsewhere(t, cfg)
	var err error
	cfg.Run, err = NewRun(uuid.Nil)
	require.NoError(t, err)
	_, err = Release(ctx, cfg)
	require.ErrorAs(t, err, new(*HeldError))
	require.NoError(t, Reset(ctx, cfg), "a run that starts over has it fenced off")
	n, err := Release(ctx, cfg)
	require.NoError(t, err)
	require.Zero(t, n, "there is nothing any more")
}

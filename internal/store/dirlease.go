package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"nvmecr/internal/config"
	"nvmecr/internal/runrecord"
	"nvmecr/microfs"
)

// A DirectoryInUseError says that another run uses a directory. It wraps syscall.EBUSY.
type DirectoryInUseError struct {
	Dir string
	Run *runrecord.Record
}

// Error names the run and the remedies.
func (e *DirectoryInUseError) Error() string {
	return fmt.Sprintf("second level %s is in use by %v: two runs would replace each other's checkpoints; give each job that runs at the same time its own --name or --level2", e.Dir, e.Run)
}

// Unwrap returns syscall.EBUSY.
func (e *DirectoryInUseError) Unwrap() error { return syscall.EBUSY }

// A DirectoryLease marks a directory as used by a run: a file has the record of the run as JSON, and the run changes the time of
// the file at intervals. Renewals take no space, so that they go on when the file system is full.
type DirectoryLease struct {
	dir, file string // paths
	me        runrecord.Record
	say       func(format string, args ...any)
	mine      func(*runrecord.Record) bool // not nil: only for DirectoryIdle
	stop      context.CancelFunc
	ended     sync.WaitGroup
}

// TakeDirectory marks a directory as used by the run of cfg, by a file in it. While another run uses the directory the error is a
// *DirectoryInUseError, unless cfg.Takeover. over reports whether a run is known to have ended. TakeDirectory waits for a sign of life of a run that has not ended by itself, as Idle does. If the file
// cannot be written, as on a full file system, the directory is used without a mark: it protects from a mistake of the user, and a job does not depend on it.
func TakeDirectory(ctx context.Context, cfg *config.Config, dir, file string, over func(run uuid.UUID) bool, say func(format string, args ...any)) (*DirectoryLease, error) {
	return takeDirectory(ctx, cfg, dir, file, over, say, beatInterval)
}

func takeDirectory(ctx context.Context, cfg *config.Config, dir, file string, over func(run uuid.UUID) bool, say func(format string, args ...any), beat time.Duration) (*DirectoryLease, error) {
	l := &DirectoryLease{dir: dir, file: filepath.Join(dir, file), say: say}
	l.me = runrecord.Record{Holder: self(cfg.Run), Store: cfg.Name, UID: uint32(os.Geteuid()), Interval: beat, Since: time.Now().UTC()}
	if err := l.take(ctx, cfg.Takeover, over); err != nil {
		return nil, err
	}
	var life context.Context
	life, l.stop = context.WithCancel(context.Background())
	l.ended.Go(func() { l.keep(life) })
	return l, nil
}

// DirectoryIdle returns a *DirectoryInUseError if a run uses a directory that is not one of some store, as TakeDirectory does. It marks nothing. mine reports
// whether a run is of the store.
func DirectoryIdle(ctx context.Context, dir, file string, mine func(*runrecord.Record) bool, say func(format string, args ...any)) error {
	return directoryIdle(ctx, dir, file, mine, say, beatInterval)
}

func directoryIdle(ctx context.Context, dir, file string, mine func(*runrecord.Record) bool, say func(format string, args ...any), beat time.Duration) error {
	l := &DirectoryLease{dir: dir, file: filepath.Join(dir, file), say: say, mine: mine}
	l.me = runrecord.Record{Holder: self(uuid.Nil), Interval: beat}
	return l.take(ctx, false, func(uuid.UUID) bool { return false })
}

// take writes the file as soon as no other run uses the directory.
func (l *DirectoryLease) take(ctx context.Context, takeover bool, over func(run uuid.UUID) bool) error {
	var before mark
	var begin time.Time // of the wait for a sign of life
	told := false
	for {
		now, err := read(l.file)
		switch {
		case errors.Is(err, fs.ErrNotExist) && l.mine != nil:
			return nil
		case errors.Is(err, fs.ErrNotExist):
			if err := l.write(os.O_EXCL); !errors.Is(err, fs.ErrExist) {
				return nil
			}
			continue
		case err != nil, now.run.Run == l.me.Run, l.mine != nil && l.mine(&now.run):
			return nil
		}
		interval := min(max(cmp.Or(now.run.Interval, l.me.Interval), minInterval), maxInterval)
		patience := missedBeats * interval
		verdict, waited := judge(&runrecord.Found{Record: &now.run}), !begin.IsZero()
		switch {
		case takeover, over(now.run.Run), verdict == runOver, l.rebooted(&now.run), waited && now.same(before) && time.Since(begin) >= patience:
			if l.mine != nil || !l.remove(now, takeover) {
				return nil
			}
			continue
		case verdict == runAlive, waited && now.run.Run != uuid.Nil && !now.same(before):
			return &DirectoryInUseError{l.dir, &now.run}
		case !waited, !now.same(before):
			before, begin = now, time.Now()
		case !told && time.Since(begin) >= interval:
			told = true
			l.say("the last run that used the second level %s, %v, has not ended by itself; waiting %v for a sign of life (--takeover does not wait)", l.dir, &now.run, patience)
		}
		if err := sleep(ctx, interval/4); err != nil {
			return err
		}
	}
}

// A mark is what the file says.
type mark struct {
	text string
	run  runrecord.Record // zero if it cannot be read
	at   time.Time        // the last renewal
}

// A markText is the JSON of a mark.
type markText struct {
	microfs.Holder
	Store    string
	UID      uint32
	Interval time.Duration
	Since    time.Time
}

func (m mark) same(other mark) bool { return m.text == other.text && m.at.Equal(other.at) }

// rebooted reports whether the run was on this host, and the host has been rebooted since.
func (l *DirectoryLease) rebooted(run *runrecord.Record) bool {
	return run.Boot != l.me.Boot && ended(run.Holder, l.me.Holder)
}

// remove removes the mark of a run that has ended, or, with anyway, of any run. Another run may do so at the same time, and write its own mark, which stays. remove
// returns false if the mark cannot be removed.
func (l *DirectoryLease) remove(old mark, anyway bool) bool {
	aside := l.file + "-" + uuid.NewString()
	if err := os.Rename(l.file, aside); err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	if now, err := read(aside); !anyway && err == nil && !now.same(old) {
		_ = os.Link(aside, l.file) // fails if that run has noticed, and has written its mark again
	}
	return os.Remove(aside) == nil
}

// read reads a file.
func read(file string) (m mark, err error) {
	f, err := os.Open(file) // on a network file system this reads what other hosts have written
	if err != nil {
		return m, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return m, err
	}
	m.at = info.ModTime()
	text, err := io.ReadAll(io.LimitReader(f, maxMark))
	var s markText
	if err == nil && json.Unmarshal(text, &s) == nil {
		m.run = runrecord.Record{Holder: s.Holder, Store: s.Store, UID: s.UID, Interval: s.Interval, Since: s.Since}
	}
	m.text = string(text)
	return m, err
}

// maxMark is more than a file has.
const maxMark = 64 << 10

// write writes the file. If that fails it leaves an empty file at most.
func (l *DirectoryLease) write(flag int) error {
	text, err := json.Marshal(markText{l.me.Holder, l.me.Store, l.me.UID, l.me.Interval, l.me.Since})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(l.file, os.O_WRONLY|os.O_CREATE|flag, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	return errors.Join(err, f.Close())
}

// keep renews the file until ctx ends, and then removes it.
func (l *DirectoryLease) keep(ctx context.Context) {
	for sleep(ctx, l.me.Interval) == nil {
		switch now, err := read(l.file); {
		case errors.Is(err, fs.ErrNotExist):
			_ = l.write(os.O_EXCL) // fails if the directory is not there, or another run is faster
		case err != nil: // the next try may succeed
		case now.run.Run == l.me.Run:
			_ = os.Chtimes(l.file, time.Time{}, time.Now()) // takes no space
		case now.run.Run != uuid.Nil:
			l.say("second level %s is now used by %v, too: the checkpoints of the two runs replace each other", l.dir, &now.run)
			return
		default:
			_ = l.write(0) // there was no space before
		}
	}
	if now, err := read(l.file); err == nil && now.run.Run == l.me.Run {
		_ = os.Remove(l.file)
	}
}

// End removes the mark, if it is still that of the run. It does not wait for a file system that does not answer.
func (l *DirectoryLease) End() {
	l.stop()
	done := make(chan struct{})
	go func() { l.ended.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(silent):
	}
}

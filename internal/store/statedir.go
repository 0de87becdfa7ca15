package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/nvmf"
)

// A StateDir is the directory of one store name:
//
//	$XDG_STATE_HOME/nvmecr/NAME/   (default ~/.local/state), mode 0700
//	  store.json      Record of the last run, replaced atomically
//	  namespace.img   what the embedded target serves
//	  verified        when all of the store was last found to be as it was written
//	  run.key         by which the run in progress proves itself to its target
//	  lock            flock'd by the run in progress and its target; holds a pid
type StateDir struct {
	Name string
	Path string
	// Made says that this OpenStateDir created it.
	Made bool
}

// A Record is what is remembered of the last run.
type Record struct {
	Settings map[string]string `json:"settings"` // config.Config.Values
	Embedded bool              `json:"embedded"` // the target was the embedded one, over Image
	Size     nvmf.Bytes        `json:"size"`     // of Image
	Run      uuid.UUID         `json:"run"`      // the last one
	Time     time.Time         `json:"time"`
}

// maxRecord is far more than a record takes; what is behind it is not read.
const maxRecord = 1 << 20

// OpenStateDir returns the state directory of the store for writing, creating
// it. It fails with parttable.ErrOtherOwner, nothing written, if it is another
// user's, also for root: what root writes there its user could no longer use.
func OpenStateDir(name string) (*StateDir, error) {
	d, err := FindStateDir(name)
	if err != nil {
		return nil, err
	}
	if err := d.open(); err != nil {
		return nil, fmt.Errorf("state directory of store %q: %w", name, err)
	}
	return d, nil
}

// FindStateDir returns the state directory of the store for reading, whether
// it exists or not.
func FindStateDir(name string) (*StateDir, error) {
	if err := parttable.CheckName(name); err != nil {
		return nil, fmt.Errorf("store name %w", err)
	}
	root, err := stateRoot()
	if err != nil {
		return nil, err
	}
	return &StateDir{Name: name, Path: filepath.Join(root, name)}, nil
}

func (d *StateDir) open() error {
	if err := os.MkdirAll(filepath.Dir(d.Path), 0o700); err != nil {
		return err
	}
	err := os.Mkdir(d.Path, 0o700)
	if err == nil {
		d.Made = true
		return nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(d.Path, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: d.Path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("%s: %w", d.Path, unix.ENOTDIR)
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s %w: user %d, this one runs as user %d; run it as that user, or use another --name or XDG_STATE_HOME",
			d.Path, parttable.ErrOtherOwner, st.Uid, os.Geteuid())
	}
	return nil
}

// StateDirs lists the names that have something in a state directory, sorted.
func StateDirs() ([]string, error) {
	root, err := stateRoot()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("state directories: %w", err)
	}
	var names []string
	for _, e := range entries {
		if parttable.CheckName(e.Name()) != nil {
			continue
		}
		d := &StateDir{Name: e.Name(), Path: filepath.Join(root, e.Name())}
		if exists(d.record()) || exists(d.Image()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// stateHome is where a batch system says the records of a job are to be: on the host, where a home that hosts share has
// locks of one that was lost.
const stateHome = "NVMECR_STATE_HOME"

// stateRoot follows the XDG base directory specification, which says to
// ignore a path that is not absolute.
func stateRoot() (string, error) {
	if dir := os.Getenv(stateHome); filepath.IsAbs(dir) {
		return filepath.Join(dir, "nvmecr"), nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "nvmecr"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("state directory: %w; set HOME or XDG_STATE_HOME", err)
	}
	return filepath.Join(home, ".local", "state", "nvmecr"), nil
}

// Image is the path of the embedded target's backing file.
func (d *StateDir) Image() string { return filepath.Join(d.Path, "namespace.img") }

func (d *StateDir) record() string { return filepath.Join(d.Path, "store.json") }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// WriteKey puts the key of a run into the directory, where only its user reads it, and
// returns the file.
func (d *StateDir) WriteKey(text string) (path string, err error) {
	path = filepath.Join(d.Path, "run.key")
	return path, replaceFile(path, []byte(text+"\n")) // os.CreateTemp makes it mode 0600
}

func (d *StateDir) verified() string { return filepath.Join(d.Path, "verified") }

// RecordVerified remembers that all that had been written by then was found to be as it was written.
func (d *StateDir) RecordVerified(when time.Time) error {
	text, err := when.UTC().MarshalText()
	if err != nil {
		return err
	}
	return replaceFile(d.verified(), append(text, '\n'))
}

// Verified returns when that was last; the zero time if it is not known.
func (d *StateDir) Verified() (when time.Time) {
	text, err := os.ReadFile(d.verified())
	if err != nil || when.UnmarshalText(bytes.TrimSpace(text)) != nil {
		return time.Time{}
	}
	return when
}

// Recorded says whether there is a record.
func (d *StateDir) Recorded() bool { return exists(d.record()) }

// Record remembers cfg. A crash leaves the record of this run or of the last.
// Where there is no room for it and nothing but the time is new the last one is
// as good.
func (d *StateDir) Record(cfg *config.Config, embedded bool) error {
	r := Record{Settings: cfg.Values(), Embedded: embedded, Size: cfg.Size, Run: cfg.Run, Time: time.Now().UTC()}
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = replaceFile(d.record(), append(b, '\n'))
	}
	if err == nil {
		return nil
	}
	if old, e := d.Load(); e == nil && old.same(&r) && errors.Is(err, unix.ENOSPC) {
		return nil
	}
	if errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("%w; make room there, or set XDG_STATE_HOME", err)
	}
	return fmt.Errorf("record of store %q: %w", d.Name, err)
}

// same reports whether two records say the same but for the time. Where the
// embedded target listened is nobody's business any more.
func (r *Record) same(s *Record) bool {
	a, b := maps.Clone(r.Settings), maps.Clone(s.Settings)
	if r.Embedded {
		delete(a, "target")
		delete(b, "target")
	}
	return r.Embedded == s.Embedded && r.Size == s.Size && maps.Equal(a, b)
}

// Load returns the record of the last run; the error is fs.ErrNotExist if
// there was none.
func (d *StateDir) Load() (*Record, error) {
	path := d.record()
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("record of store %q: %w", d.Name, err)
	}
	defer f.Close()
	var r Record
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return nil, fmt.Errorf("record of store %q: %s: %w; remove the file and name the targets with --target", d.Name, path, err)
	}
	return &r, nil
}

// CheckImage fails if the image is smaller than it was in the last run: then
// what was behind its end is gone.
func (d *StateDir) CheckImage() error {
	r, err := d.Load()
	if err != nil || !r.Embedded {
		return nil // nothing is known of it
	}
	info, err := os.Stat(d.Image())
	if err != nil {
		return fmt.Errorf("store %q: %w; restore the file, or start over with --fresh, or give the store up with `nvmecr release`", d.Name, err)
	}
	if size := nvmf.Bytes(info.Size()); size < r.Size {
		return fmt.Errorf("store %q: %s was truncated from %s to %s; restore it, or start over with --fresh, or give the store up with `nvmecr release`",
			d.Name, d.Image(), r.Size, size)
	}
	return nil
}

// Remove deletes the directory and what is in it. The caller holds the lock,
// which ends to mean anything.
func (d *StateDir) Remove() error {
	if err := os.RemoveAll(d.Path); err != nil {
		return fmt.Errorf("state directory of store %q: %w", d.Name, err)
	}
	return nil
}

// replaceFile writes a file so that its name has the old content or the new.
func replaceFile(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// A DirLock holds the lock of a state directory.
type DirLock struct {
	// File is the open lock file. A process that inherits it
	// (exec.Cmd.ExtraFiles) holds the lock too, until all of them have ended:
	// so does the embedded target.
	File *os.File
}

// Lock takes the lock without waiting. If the directory is locked the error is
// a *LockedError, which names the holder.
func (d *StateDir) Lock() (*DirLock, error) {
	path := filepath.Join(d.Path, "lock")
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock of store %q: %w", d.Name, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			defer f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, &LockedError{Name: d.Name, PID: holder(f)}
			}
			return nil, fmt.Errorf("lock of store %q: %w", d.Name, err)
		}
		// Remove may have come between opening and locking.
		if !sameFile(f, path) {
			_ = f.Close()
			if err := os.MkdirAll(d.Path, 0o700); err != nil {
				return nil, fmt.Errorf("lock of store %q: %w", d.Name, err)
			}
			continue
		}
		l := &DirLock{File: f}
		return l, l.SetHolder(os.Getpid())
	}
}

// InUse reports whether a run, or the target of one, has the lock.
func (d *StateDir) InUse() (bool, error) {
	f, err := os.Open(filepath.Join(d.Path, "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock of store %q: %w", d.Name, err)
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return false, fmt.Errorf("lock of store %q: %w", d.Name, err)
	}
	return err != nil, nil
}

// SetHolder records the pid to name in other processes' errors. Lock records
// that of its own process.
func (l *DirLock) SetHolder(pid int) error {
	// One write of fixed length: a reader sees the old pid or the new.
	if _, err := l.File.WriteAt(fmt.Appendf(nil, "%-10d\n", pid), 0); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

// Unlock gives up this process's part of the lock. Processes that inherited
// the file keep theirs.
func (l *DirLock) Unlock() error { return l.File.Close() }

// holder reads the pid of a lock file, 0 if there is none.
func holder(f *os.File) int {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0) // a file that cannot be read names nobody
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		return 0
	}
	return pid
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

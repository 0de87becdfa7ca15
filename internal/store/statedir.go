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
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// A StateDir is the directory of one store name:
//
//	$XDG_STATE_HOME/nvmecr/NAME/   (default ~/.local/state), mode 0700
//	  store.json      Record of the last run, replaced atomically
//	  namespace.img   backing file of the embedded target
//	  verified        time of the last verification without a finding
//	  run.key         key by which the run in progress authenticates itself to its target
//	  lock            locked (flock) by the run in progress and its target; names the process
type StateDir struct {
	Name string
	Path string
	// Made is true if this OpenStateDir created the directory.
	Made bool
}

// A Record has the settings of the last run.
type Record struct {
	Settings map[string]string `json:"settings"` // config.Config.Values
	Embedded bool              `json:"embedded"` // the target was the embedded one, over Image
	Size     nvmf.Bytes        `json:"size"`     // of Image
	Run      uuid.UUID         `json:"run"`      // id of the last run
	Time     time.Time         `json:"time"`
}

// maxRecord is much larger than any record. The rest of a longer file is not read.
const maxRecord = 1 << 20

// OpenStateDir returns the state directory of the store for writing, and creates it if necessary. If the directory is
// another user's it fails with parttable.ErrOtherOwner and writes nothing. That includes root: files that root wrote
// there would be of no use to the owner of the directory.
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

// FindStateDir returns the state directory of the store for reading. The directory need not exist.
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

// StateDirs lists the names of all state directories, sorted.
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

// stateHome is the variable by which a batch system sets the directory for the records of a job. The directory should
// be local to the host: in a home directory that several hosts share, a host that was lost may still hold locks.
const stateHome = "NVMECR_STATE_HOME"

// stateRoot returns the parent of all state directories. It follows the XDG base directory specification, by which a
// path that is not absolute is ignored.
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

// WriteKey writes the key of a run into a file of the directory that only its user can read. It returns the path of
// the file.
func (d *StateDir) WriteKey(text string) (path string, err error) {
	path = filepath.Join(d.Path, "run.key")
	return path, replaceFile(path, []byte(text+"\n")) // which creates the file with mode 0600
}

func (d *StateDir) verified() string { return filepath.Join(d.Path, "verified") }

// RecordVerified records that all data written until then was verified without a finding. The zero time says that they were not.
func (d *StateDir) RecordVerified(when time.Time) error {
	text, err := when.UTC().MarshalText()
	if err != nil {
		return err
	}
	return replaceFile(d.verified(), append(text, '\n'))
}

// Verified returns the time of the last RecordVerified; the zero time if there is none.
func (d *StateDir) Verified() (when time.Time) {
	text, err := os.ReadFile(d.verified())
	if err != nil || when.UnmarshalText(bytes.TrimSpace(text)) != nil {
		return time.Time{}
	}
	return when
}

// Recorded reports whether there is a record.
func (d *StateDir) Recorded() bool { return exists(d.record()) }

// Record writes cfg to the record. A crash leaves this record or the previous one. If the file system is full and
// only the run and the time would change, the previous record is kept.
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
		err = fmt.Errorf("%w; make space there, or set XDG_STATE_HOME", err)
	}
	return fmt.Errorf("record of store %q: %w", d.Name, err)
}

// same reports whether two records are equal except for the run, the time, and the address of an embedded target,
// which no longer exists.
func (r *Record) same(s *Record) bool {
	a, b := maps.Clone(r.Settings), maps.Clone(s.Settings)
	if r.Embedded {
		delete(a, "target")
		delete(b, "target")
	}
	return r.Embedded == s.Embedded && r.Size == s.Size && maps.Equal(a, b)
}

// Load returns the record of the last run. The error is fs.ErrNotExist if there is none.
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

// CheckImage fails if the image is smaller than in the last run: data behind its end is lost.
func (d *StateDir) CheckImage() error {
	r, err := d.Load()
	if err != nil || !r.Embedded {
		return nil // the size of the image is not recorded
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

// Remove deletes the directory and its content. The caller holds the lock, which is void afterwards.
func (d *StateDir) Remove() error {
	if err := os.RemoveAll(d.Path); err != nil {
		return fmt.Errorf("state directory of store %q: %w", d.Name, err)
	}
	return nil
}

// replaceFile replaces a file atomically.
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

// Lock takes the lock without waiting. If the directory is locked the error is a *LockedError, which names the
// holder.
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
				return nil, &LockedError{Name: d.Name, Holder: readHolder(f)}
			}
			return nil, fmt.Errorf("lock of store %q: %w", d.Name, err)
		}
		// Remove may have run between the open and the lock.
		if !sameFile(f, path) {
			_ = f.Close()
			if err := os.MkdirAll(d.Path, 0o700); err != nil {
				return nil, fmt.Errorf("lock of store %q: %w", d.Name, err)
			}
			continue
		}
		return &DirLock{File: f}, writeHolder(f)
	}
}

// Holder returns the process that has taken the lock, or took it last; the zero Holder if none has.
func (d *StateDir) Holder() microfs.Holder {
	f, err := os.Open(filepath.Join(d.Path, "lock"))
	if err != nil {
		return microfs.Holder{}
	}
	defer f.Close() // only read
	return readHolder(f)
}

// InUse reports whether a run, or the embedded target of one, holds the lock.
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

// Unlock closes the lock file. The lock remains with processes that inherited the file.
func (l *DirLock) Unlock() error { return l.File.Close() }

// holderFormat is the line of a lock file: the process id, the start time of the process, the boot id and the PID
// namespace, and the name of the host.
const holderFormat = "%-10d %-20d %s %-20d %-64.64s\n"

// writeHolder writes this process to the lock file, for errors of other processes. The line names the host, since
// several hosts may share a home directory. A line of another version may be longer: Truncate removes the rest.
func writeHolder(f *os.File) error {
	me := self(uuid.Nil)
	line := fmt.Appendf(nil, holderFormat, me.PID, me.Start, me.Boot, me.PIDSpace, me.Host)
	_, err := f.WriteAt(line, 0)
	if err = errors.Join(err, f.Truncate(int64(len(line)))); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

// readHolder reads the holder from the first line of a lock file: until the writer has truncated the file, the rest is
// of another holder. Missing fields are zero.
func readHolder(f *os.File) (h microfs.Holder) {
	b := make([]byte, 256)
	n, _ := f.ReadAt(b, 0) // after an error the holder is unknown
	var boot string
	line, _, _ := strings.Cut(string(b[:n]), "\n")
	_, _ = fmt.Sscan(line, &h.PID, &h.Start, &boot, &h.PIDSpace, &h.Host) // fields that are missing or invalid stay zero
	h.Boot, _ = uuid.Parse(boot)
	return h
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

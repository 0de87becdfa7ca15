package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
)

// initialPIDSpace is the inode number of the initial PID namespace of every host (PROC_PID_INIT_INO in the kernel).
// Processes outside of containers are in that namespace.
const initialPIDSpace = 0xeffffffc

// self describes this process as the holder of a partition. A value that cannot be determined stays zero: other
// processes then cannot know whether this one has ended.
func self(run uuid.UUID) microfs.Holder {
	h := microfs.Holder{Run: run, PID: uint32(os.Getpid()), Machine: fileID("/etc/machine-id")}
	h.Host, _ = os.Hostname()
	var st unix.Stat_t
	start, err := started(os.Getpid())
	if err == nil {
		err = unix.Stat("/proc/self/ns/pid", &st)
	}
	if err == nil {
		h.Boot, h.PIDSpace, h.Start = fileID("/proc/sys/kernel/random/boot_id"), st.Ino, start
	}
	return h
}

// ended reports whether h is known to have ended: its process was on this host and no longer exists, or this host has
// been rebooted since. False also means that it is unknown.
func ended(h, me microfs.Holder) bool {
	switch {
	case h.Boot == uuid.Nil || h.PID == 0:
		return false
	case h.Boot == me.Boot && h.PIDSpace == me.PIDSpace:
		start, err := started(int(h.PID))
		return errors.Is(err, errEnded) || err == nil && start != h.Start
	case h.Boot == me.Boot:
		return false // the process may be in another container
	}
	// Hosts that boot from one image may have the same machine id; containers may have the same host name.
	return h.Machine != uuid.Nil && h.Machine == me.Machine && h.Host != "" && h.Host == me.Host &&
		h.PIDSpace == initialPIDSpace && me.PIDSpace == initialPIDSpace
}

var errEnded = errors.New("process has ended")

// started returns the start time of a process, in clock ticks since boot.
func started(pid int) (ticks uint64, err error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if errors.Is(err, fs.ErrNotExist) && exists("/proc/self/stat") || errors.Is(err, unix.ESRCH) {
		return 0, errEnded
	}
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may contain any character. Behind the last parenthesis field 0 is the state, 17 the
	// number of threads, 19 the start time.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields: %w", pid, len(f), unix.EINVAL)
	}
	if f[0] == "X" || f[0] == "Z" && f[17] == "1" { // a zombie with more threads has not ended
		return 0, errEnded
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// fileID reads a UUID from a file, with or without dashes; Nil if there is none.
func fileID(path string) uuid.UUID {
	b, err := os.ReadFile(path)
	if err != nil {
		return uuid.Nil
	}
	id, err := uuid.Parse(strings.TrimSpace(string(b)))
	if err != nil {
		return uuid.Nil
	}
	return id
}

// A HeldError says that another process may still write to the partition, and that nothing keeps it from doing so. It
// wraps syscall.EBUSY.
type HeldError struct {
	Rank    int
	Last    microfs.Claim
	SameRun bool // the process belongs to this run, so the target cannot keep it from writing
}

// Error names the process and the remedies.
func (e *HeldError) Error() string {
	why := "nothing keeps it from writing"
	if e.SameRun {
		why = "it belongs to the same run, so the target cannot keep it from writing (start each attempt with an `nvmecr run` of its own)"
	}
	return fmt.Sprintf("%s is held by %v, which did not close it, may live, and %s; make sure that it has ended, then say so with --unfenced",
		partitionName(e.Rank), &e.Last, why)
}

// Unwrap returns syscall.EBUSY.
func (e *HeldError) Unwrap() error { return syscall.EBUSY }

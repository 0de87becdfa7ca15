// Package proc finds processes in /proc and ends them. It is for launchers
// and tests that must leave nothing behind. All functions are safe for
// concurrent use.
package proc

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// KillTree sends SIGKILL to pid, its descendants, and every process group that one of them leads: parents first, so that none notices
// the death of its children. A process that is started meanwhile may be missed; call it again until Descendants is empty.
func KillTree(pid int) {
	for _, p := range append([]int{pid}, Descendants(pid)...) {
		// Errors mean that the process has ended.
		if group, err := syscall.Getpgid(p); err == nil && group == p {
			_ = syscall.Kill(-p, syscall.SIGKILL)
		}
		_ = syscall.Kill(p, syscall.SIGKILL)
	}
}

// Descendants returns the processes below pid, parents before children.
func Descendants(pid int) []int {
	children := make(map[int][]int)
	for _, p := range all() {
		parent := parent(p)
		children[parent] = append(children[parent], p)
	}
	found := slices.Clone(children[pid])
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found
}

// WithEnv returns the processes, other than this one, that were started with "name=value" in their environment and have not ended.
func WithEnv(name, value string) []int {
	want := []byte(name + "=" + value)
	var found []int
	for _, p := range all() {
		if p == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p), "environ"))
		if err != nil {
			continue // ended, or of another user
		}
		for _, kv := range bytes.Split(env, []byte{0}) {
			if bytes.Equal(kv, want) {
				found = append(found, p)
				break
			}
		}
	}
	return found
}

// KillWithEnv sends SIGKILL to the processes of WithEnv until all have ended, and returns how many it has killed. It kills known ones
// before the search, which takes milliseconds. It fails if ctx ends first.
func KillWithEnv(ctx context.Context, name, value string, known ...int) (int, error) {
	killed := make(map[int]bool)
	kill := func(pids []int) {
		for _, p := range pids {
			if syscall.Kill(p, syscall.SIGKILL) == nil {
				killed[p] = true
			}
		}
	}
	kill(known)
	for {
		kill(WithEnv(name, value))
		// A dying process loses its environment before it closes its files.
		dying := slices.DeleteFunc(slices.Collect(maps.Keys(killed)), Ended)
		if len(dying) == 0 && len(WithEnv(name, value)) == 0 {
			return len(killed), nil
		}
		select {
		case <-ctx.Done():
			return len(killed), fmt.Errorf("processes %v do not end: %w", dying, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// Stopped reports whether all threads of a process are stopped by a signal. They go on for a while after kill(SIGSTOP) has returned.
func Stopped(pid int) bool {
	threads, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/stat"))
	for _, path := range threads {
		if fields := fieldsOf(path); len(fields) > 0 && fields[0] != "T" {
			return false
		}
	}
	return len(threads) > 0
}

// Ended reports whether a process and all its threads have ended, so that all its files are closed. It may still be a zombie.
func Ended(pid int) bool {
	fields := stat(pid)
	if len(fields) == 0 {
		return true
	}
	threads, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	return err != nil || fields[0] == "Z" && len(threads) <= 1
}

func all() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parent returns the parent of pid, 0 if it has ended.
func parent(pid int) int {
	fields := stat(pid)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

// stat returns the fields of /proc/PID/stat from the third on (the state);
// none if there is no such process.
func stat(pid int) []string { return fieldsOf(filepath.Join("/proc", strconv.Itoa(pid), "stat")) }

// fieldsOf is stat for a file, of a process or of a thread. The second field is
// a name in parentheses that may contain anything.
func fieldsOf(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

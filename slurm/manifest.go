package slurm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A manifest is a directory on a node, named by the job's number, that only the job's user can read:
//
//	environment   lines NAME=VALUE, settings of nvmecr run
//	restarts      how often the job was started before
//	key           authenticates the node as a host of the job
//	state         the state directory of its runs; not in a home directory that nodes share, where a lost node may hold its locks
//
// root creates it, in a directory of root's.

// Prolog creates the manifest on this node, in runtime. It does nothing for a job without a lease.
func (h *Hooks) Prolog(id uint32, runtime string) error {
	l, err := h.store().ofJob(id)
	if l == nil {
		return err
	}
	if !l.Ready {
		return fmt.Errorf("job %d: its lease %s is not ready", id, l.Name)
	}
	if err := h.Epilog(id, runtime); err != nil {
		return err
	}
	dir := manifestOf(id, runtime)
	key := filepath.Join(dir, "key")
	if err := errors.Join(os.MkdirAll(runtime, 0o755), os.Mkdir(dir, 0o700)); err != nil {
		return err
	}
	environment := strings.Join(l.Settings(key), "\n") + "\n"
	for path, text := range map[string]string{
		key:                               l.Key + "\n",
		filepath.Join(dir, "environment"): environment,
		filepath.Join(dir, "restarts"):    fmt.Sprintln(l.Restarts),
	} {
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o400), os.Chown(path, int(l.User), -1)); err != nil {
			return err
		}
	}
	return os.Chown(dir, int(l.User), -1) // last, since it makes the manifest available to the user
}

func manifestOf(id uint32, runtime string) string {
	return filepath.Join(runtime, strconv.FormatUint(uint64(id), 10))
}

// Settings returns the settings of the job's runs, lines NAME=VALUE; the key is in the file key. The mapping is for the
// first start: later starts find ranks by the partition table, whatever nodes they are on.
func (l *Lease) Settings(key string) []string {
	var targets []string
	for _, s := range l.Targets {
		targets = append(targets, s.Namespace)
	}
	env := []string{"NVMECR_NAME=" + l.Name, "NVMECR_TARGET=" + strings.Join(targets, ";"), "NVMECR_HOSTNQN=" + l.HostNQN, "NVMECR_DHCHAP_SECRET=" + key,
		"NVMECR_STATE_HOME=" + filepath.Join(filepath.Dir(key), "state")}
	if l.Request.Copies != "" {
		env = append(env, "NVMECR_COPIES="+string(l.Request.Copies))
	}
	if l.Request.CopiesSync {
		env = append(env, "NVMECR_COPIES_SYNC=on")
	}
	if !l.Reused {
		env = append(env, "NVMECR_MAPPING="+l.Mapping)
	}
	return env
}

// Epilog removes the manifest from this node.
func (h *Hooks) Epilog(id uint32, runtime string) error { return os.RemoveAll(manifestOf(id, runtime)) }

// TaskProlog prints the job's variables in the form of Slurm's TaskProlog, if there is a manifest.
func TaskProlog(w io.Writer, id uint32, runtime string) error {
	env, err := Environment(id, runtime)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, line := range env {
		if _, err := fmt.Fprintln(w, "export", line); err != nil {
			return err
		}
	}
	return err
}

// Environment returns the lines NAME=VALUE of a job's manifest on this node; os.ErrNotExist if the job has none.
func Environment(id uint32, runtime string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(manifestOf(id, runtime), "environment"))
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n"), nil
}

// Step returns a name that the nodes of a step share, and that no other step or start of the job has.
func Step(id uint32, step, runtime string) (string, error) {
	b, err := os.ReadFile(filepath.Join(manifestOf(id, runtime), "restarts"))
	return fmt.Sprintf("slurm-%d.%s.%s", id, strings.TrimSpace(string(b)), step), err
}

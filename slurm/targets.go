package slurm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"nvmecr/balancer/site"
	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
)

// Targets creates and deletes namespaces on the targets of an inventory, as `nvmecr admin` does. All calls can be
// repeated.
type Targets interface {
	// Create creates the namespace if it does not exist, and returns its name in the form of --target.
	Create(ctx context.Context, on site.Target, name string, size nvmf.Bytes) (string, error)
	// Expose gives access to hosts with that NQN and key, and removes the access of all other keys.
	Expose(ctx context.Context, on site.Target, name, hostNQN, key string) error
	// Delete frees a namespace.
	Delete(ctx context.Context, on site.Target, name string) error
	// List returns the names of all namespaces.
	List(ctx context.Context, on site.Target) ([]string, error)
}

// commandTimeout is how long a command to a target may take. If the host of the target vanishes during the command there
// is no other sign of that.
const commandTimeout = time.Minute

// Commands implements Targets by the admin command of the inventory, such as ssh st1 nvmecr admin --provisioner ....
// A target that has not answered in time is not called again by this process, which has to proceed to the other
// targets.
type Commands struct {
	limit  time.Duration // of each command; 0: targetTime
	silent sync.Map      // names of targets
}

// ErrSilent is wrapped by errors about a target that has not answered in time.
var ErrSilent = errors.New("it has not answered in time")

// Create calls nvmecr admin create.
func (c *Commands) Create(ctx context.Context, on site.Target, name string, size nvmf.Bytes) (string, error) {
	out, err := c.call(ctx, on, "", "create", "--json", name, fmt.Sprint(uint64(size)))
	if err != nil {
		return "", err
	}
	var n provision.Namespace
	if err := json.Unmarshal(out, &n); err != nil {
		return "", fmt.Errorf("target %s: create: %w", on.Name, err)
	}
	if len(n.Targets) == 0 {
		return "", fmt.Errorf("target %s: the namespace exists, but the target listens on no address", on.Name)
	}
	return n.Targets[0].String(), nil
}

// Expose calls nvmecr admin expose.
func (c *Commands) Expose(ctx context.Context, on site.Target, name, hostNQN, key string) error {
	_, err := c.call(ctx, on, hostNQN+" "+key+"\n", "expose", "--dhchap-keys=-", name, hostNQN)
	return err
}

// Delete calls nvmecr admin delete.
func (c *Commands) Delete(ctx context.Context, on site.Target, name string) error {
	_, err := c.call(ctx, on, "", "delete", name)
	return err
}

// List calls nvmecr admin list.
func (c *Commands) List(ctx context.Context, on site.Target) (names []string, err error) {
	out, err := c.call(ctx, on, "", "list", "--json")
	if err != nil {
		return nil, err
	}
	var list []provision.Namespace
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("target %s: list: %w", on.Name, err)
	}
	for _, n := range list {
		names = append(names, n.Job)
	}
	return names, nil
}

// call runs the target's command. A key is passed by standard input, since other users can see arguments.
func (c *Commands) call(ctx context.Context, on site.Target, input string, args ...string) ([]byte, error) {
	if len(on.Admin) == 0 {
		return nil, fmt.Errorf("target %s: the inventory has no admin command for it", on.Name)
	}
	if _, silent := c.silent.Load(on.Name); silent {
		return nil, fmt.Errorf("target %s: %w", on.Name, ErrSilent)
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.limit, commandTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, on.Admin[0], append(on.Admin[1:len(on.Admin):len(on.Admin)], args...)...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second // the command may leave processes that have its output open, such as a shared connection of ssh
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.silent.Store(on.Name, true)
			err = ErrSilent
		}
		if said := strings.TrimSpace(stderr.String()); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, fmt.Errorf("target %s: %s %s: %w", on.Name, strings.Join(on.Admin, " "), args[0], err)
	}
	return stdout.Bytes(), nil
}

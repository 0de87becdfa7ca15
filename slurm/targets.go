package slurm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"

	"nvmecr/balancer/site"
	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
)

// Targets do what `nvmecr admin` does, on the target that an inventory names. All can be repeated.
type Targets interface {
	// Create makes the namespace name, or finds it, and returns it as --target takes it.
	Create(ctx context.Context, on site.Target, name string, size nvmf.Bytes) (string, error)
	// Expose lets the host in by that key, and whoever has another one out.
	Expose(ctx context.Context, on site.Target, name, hostNQN, key string) error
	// Delete frees a namespace.
	Delete(ctx context.Context, on site.Target, name string) error
	// List returns the names of all namespaces.
	List(ctx context.Context, on site.Target) ([]string, error)
}

// Commands are Targets that are administered by the command of the inventory, such as ssh st1 nvmecr admin --provisioner ....
type Commands struct{}

// Create calls nvmecr admin create.
func (c Commands) Create(ctx context.Context, on site.Target, name string, size nvmf.Bytes) (string, error) {
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
func (c Commands) Expose(ctx context.Context, on site.Target, name, hostNQN, key string) error {
	_, err := c.call(ctx, on, hostNQN+" "+key+"\n", "expose", "--dhchap-keys=-", name, hostNQN)
	return err
}

// Delete calls nvmecr admin delete.
func (c Commands) Delete(ctx context.Context, on site.Target, name string) error {
	_, err := c.call(ctx, on, "", "delete", name)
	return err
}

// List calls nvmecr admin list.
func (c Commands) List(ctx context.Context, on site.Target) (names []string, err error) {
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

// call runs the target's command. A key goes by its standard input, which no other user sees.
func (Commands) call(ctx context.Context, on site.Target, input string, args ...string) ([]byte, error) {
	if len(on.Admin) == 0 {
		return nil, fmt.Errorf("target %s: the inventory has no admin command for it", on.Name)
	}
	cmd := exec.CommandContext(ctx, on.Admin[0], append(on.Admin[1:len(on.Admin):len(on.Admin)], args...)...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if said := strings.TrimSpace(stderr.String()); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, fmt.Errorf("target %s: %s %s: %w", on.Name, strings.Join(on.Admin, " "), args[0], err)
	}
	return stdout.Bytes(), nil
}

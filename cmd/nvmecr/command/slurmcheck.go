package command

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"nvmecr/balancer/site"
	"nvmecr/slurm"
)

// check examines an installation, on the controller.
func (o *slurmOptions) check(cmd *cobra.Command, h *slurm.Hooks) error {
	all := []finding{o.checkState(), checkOrphans(cmd.Context(), h)}
	if !slices.ContainsFunc(h.Inventory.Targets, func(t site.Target) bool { return len(t.Admin) > 0 }) {
		all = append(all, finds("targets", "none in %s has an admin command", o.inventory).lacks(findingMissing, "no job gets space without one: see docs/slurm.md"))
	}
	for _, t := range h.Inventory.Targets {
		if len(t.Admin) == 0 {
			continue
		}
		f := finds("target "+t.Name, "%s", strings.Join(t.Admin, " "))
		if names, err := h.Targets.List(cmd.Context(), t); err != nil {
			f = finds("target "+t.Name, "%s", flat(err)).lacks(findingMissing, "the admin command of the inventory has to work as Slurm's user, without a terminal")
		} else {
			f.Found = fmt.Sprintf("%s: %d namespaces", f.Found, len(names))
		}
		all = append(all, f)
	}
	all = append(all, checkSlurmConf(cmd.Context())...)
	return (&hostCheckOptions{json: o.json}).print(cmd.OutOrStdout(), all)
}

// flat is an error on one line.
func flat(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (o *slurmOptions) checkState() finding {
	f := finds("state directory", "%s", o.state)
	switch info, err := os.Stat(o.state); {
	case err != nil:
		return finds("state directory", "%v", err).lacks(findingMissing, "make it on a file system that the nodes share, for Slurm's user (mode 0700)")
	case !info.IsDir():
		return f.lacks(findingMissing, "it is no directory: name one with --state")
	case info.Mode().Perm()&0o077 != 0:
		return f.lacks(findingMissing, "it has keys in it, and others can get at it: chmod 700")
	}
	return f
}

func checkOrphans(ctx context.Context, h *slurm.Hooks) finding {
	orphans, err := h.Orphans(ctx)
	switch {
	case err != nil:
		return finds("leases", "%s", flat(err)).lacks(findingPoor, "what targets hold cannot be compared with the leases")
	case len(orphans) > 0:
		return finds("leases", "%d namespaces have none", len(orphans)).lacks(findingPoor, "`nvmecr slurm status` names them; nvmecr admin delete frees one")
	}
	return finds("leases", "what targets hold is leased")
}

// wanted are lines of Slurm's configuration.
var wanted = []struct{ name, pattern, remedy string }{
	{"PrologSlurmctld", `\S*nvmecr\S*|\S*prolog\S*`, "without it no job has space: see docs/slurm.md"},
	{"EpilogSlurmctld", `\S*nvmecr\S*|\S*epilog\S*`, "without it the end of a job is noted by the next reconcile only"},
	{"Prolog", `\S+`, "without it no job has its key on a node"},
	{"Epilog", `\S+`, "without it keys are left on nodes"},
	{"TaskProlog", `\S+`, "without it jobs do not know their targets"},
	{"PrologFlags", `.*Alloc.*`, "without Alloc the Prolog runs when the first task starts, after the batch script has"},
}

// checkSlurmConf asks the controller for its configuration.
func checkSlurmConf(ctx context.Context) []finding {
	out, err := exec.CommandContext(ctx, "scontrol", "show", "config").CombinedOutput()
	if err != nil {
		return []finding{finds("slurm.conf", "scontrol show config: %v: %s", err, strings.TrimSpace(string(out))).lacks(findingMissing, "check runs on a host of the cluster")}
	}
	var all []finding
	for _, w := range wanted {
		m := regexp.MustCompile(`(?m)^` + w.name + `(?:\[0\])?\s*= (.*)$`).FindStringSubmatch(string(out))
		value := "(null)"
		if m != nil {
			value = strings.TrimSpace(m[1])
		}
		f := finds(w.name, "%s", value)
		if value == "(null)" || !regexp.MustCompile(`^(?:`+w.pattern+`)$`).MatchString(value) {
			f = f.lacks(findingMissing, w.remedy)
		}
		all = append(all, f)
	}
	return all
}

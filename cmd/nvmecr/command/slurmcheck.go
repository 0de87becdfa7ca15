package command

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"nvmecr/slurm"
)

// check examines an installation, on the controller.
func (o *slurmOptions) check(cmd *cobra.Command, h *slurm.Hooks) error {
	all := []finding{o.checkState(), checkOrphans(cmd.Context(), h)}
	for _, t := range h.Inventory.Targets {
		if len(t.Admin) == 0 {
			continue
		}
		f := finds("target "+t.Name, "%s", strings.Join(t.Admin, " "))
		if names, err := h.Targets.List(cmd.Context(), t); err != nil {
			f = finds("target "+t.Name, "%v", err).lacks(findingMissing, "the admin command of the inventory has to work as Slurm's user, without a terminal")
		} else {
			f.Found = fmt.Sprintf("%s: %d namespaces", f.Found, len(names))
		}
		all = append(all, f)
	}
	all = append(all, checkSlurmConf(cmd.Context())...)
	return (&hostCheckOptions{json: o.json}).print(cmd.OutOrStdout(), all)
}

func (o *slurmOptions) checkState() finding {
	f := finds("state directory", "%s", o.state)
	switch info, err := os.Stat(o.state); {
	case err != nil:
		return finds("state directory", "%v", err).lacks(findingMissing, "make it on a file system that the nodes share, for Slurm's user (mode 0700)")
	case info.Mode().Perm()&0o077 != 0:
		return f.lacks(findingMissing, "it has keys in it, and others can get at it: chmod 700")
	}
	return f
}

func checkOrphans(ctx context.Context, h *slurm.Hooks) finding {
	orphans, err := h.Orphans(ctx)
	switch {
	case err != nil:
		return finds("leases", "%v", err).lacks(findingPoor, "what targets hold cannot be compared with the leases")
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

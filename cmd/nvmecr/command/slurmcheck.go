package command

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/balancer/site"
	"nvmecr/slurm"
)

// check examines an installation, on the controller.
func (o *slurmOptions) check(cmd *cobra.Command, h *slurm.Hooks) error {
	conf, err := readSlurmConf(cmd.Context())
	all := []finding{o.checkState(conf), checkOrphans(cmd.Context(), h)}
	if !slices.ContainsFunc(h.Inventory.Targets, func(t site.Target) bool { return len(t.Admin) > 0 }) {
		all = append(all, newFinding("targets", "none in %s has an admin command", o.inventory).problem(findingMissing, "no job gets space without one: see docs/slurm.md"))
	}
	for _, t := range h.Inventory.Targets {
		if len(t.Admin) == 0 {
			continue
		}
		all = append(all, checkPlace(h, t)...)
		f := newFinding("target "+t.Name, "%s", strings.Join(t.Admin, " "))
		if names, err := h.Targets.List(cmd.Context(), t); err != nil {
			f = newFinding("target "+t.Name, "%s", oneLine(err)).problem(findingMissing, "the admin command of the inventory has to work as Slurm's user, without a terminal")
		} else {
			f.Found = fmt.Sprintf("%s: %d namespaces", f.Found, len(names))
		}
		all = append(all, f)
	}
	if err != nil {
		all = append(all, newFinding("slurm.conf", "%v", err).problem(findingMissing, "check runs on a host of the cluster"))
	} else {
		all = append(all, checkSlurmConf(conf)...)
		all = append(all, checkPlugins(conf))
	}
	return (&hostCheckOptions{json: o.json}).print(cmd.OutOrStdout(), all)
}

// oneLine formats an error on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (o *slurmOptions) checkState(conf slurmConf) finding {
	f := newFinding("state directory", "%s", o.state)
	info, err := os.Stat(o.state)
	if err != nil {
		return newFinding("state directory", "%v", err).problem(findingMissing, "make it on a file system that the nodes share, for Slurm's user (mode 0700)")
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch user := conf["SlurmUser"]; {
	case !info.IsDir():
		return f.problem(findingMissing, "it is no directory: name one with --state")
	case info.Mode().Perm()&0o077 != 0:
		return f.problem(findingMissing, "it contains keys, and other users can access it: chmod 700")
	case ok && user != "" && !strings.HasSuffix(user, fmt.Sprintf("(%d)", owner.Uid)):
		return f.problem(findingMissing, fmt.Sprintf("the hooks of the controller run as %s, and it belongs to user %d: chown", user, owner.Uid))
	}
	return f
}

// checkPlace checks that the topology has the node or the switch of a target.
func checkPlace(h *slurm.Hooks, t site.Target) []finding {
	for _, place := range []string{t.Node, t.Switch} {
		if _, known := h.Network.Switch(place); known || h.Network.Nodes() == 0 {
			return nil
		}
	}
	return []finding{newFinding("target "+t.Name, "node %q", cmp.Or(t.Node, t.Switch)).problem(findingPoor, "the topology does not have it, so a job may get a target that fails together with its nodes: the names in both files have to agree")}
}

func checkOrphans(ctx context.Context, h *slurm.Hooks) finding {
	orphans, err := h.Orphans(ctx)
	switch {
	case err != nil:
		return newFinding("leases", "%s", oneLine(err)).problem(findingPoor, "the namespaces of the targets cannot be compared with the leases")
	case len(orphans) > 0:
		return newFinding("leases", "%d namespaces have none", len(orphans)).problem(findingPoor, "`nvmecr slurm status` names them; nvmecr admin delete frees one")
	}
	return newFinding("leases", "all namespaces of the targets are leased")
}

// hookLines are the lines of Slurm's configuration that name its hooks.
var hookLines = []struct{ name, remedy string }{
	{"PrologSlurmctld", "without it no job has space"},
	{"EpilogSlurmctld", "without it the end of a job is noted by the next reconcile only"},
	{"Prolog", "without it no job has its key on a node"},
	{"Epilog", "without it keys are left on nodes"},
	{"TaskProlog", "without it jobs do not know their targets"},
}

// slurmConf is Slurm's configuration as the controller reports it.
type slurmConf map[string]string

var confLine = regexp.MustCompile(`(?m)^(\w+)(?:\[\d+\])?\s*= (.*)$`)

// readSlurmConf queries the controller.
func readSlurmConf(ctx context.Context) (slurmConf, error) {
	out, err := exec.CommandContext(ctx, "scontrol", "show", "config").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("scontrol show config: %w: %s", err, strings.TrimSpace(string(out)))
	}
	conf := make(slurmConf)
	for _, m := range confLine.FindAllStringSubmatch(string(out), -1) {
		if value := strings.TrimSpace(m[2]); value != "(null)" {
			conf[m[1]] = strings.TrimSpace(conf[m[1]] + " " + value) // a hook can have several values
		}
	}
	return conf, nil
}

func checkSlurmConf(conf slurmConf) (all []finding) {
	for _, h := range hookLines {
		all = append(all, checkHook(h.name, conf[h.name], h.remedy))
	}
	flags := newFinding("PrologFlags", "%s", cmp.Or(conf["PrologFlags"], "(null)"))
	if !strings.Contains(conf["PrologFlags"], "Alloc") {
		flags = flags.problem(findingMissing, "without Alloc the Prolog runs when the first task starts, after the batch script has")
	}
	return append(all, flags)
}

// checkHook checks that one of a hook's programs, given as paths or glob patterns, belongs to nvmecr or mentions it:
// a site may call nvmecr-hook.sh from a script of its own.
func checkHook(name, programs, remedy string) finding {
	if programs == "" {
		return newFinding(name, "(null)").problem(findingMissing, remedy+": see docs/slurm.md")
	}
	f := newFinding(name, "%s", programs)
	for _, pattern := range strings.FieldsFunc(programs, func(c rune) bool { return c == ' ' || c == ',' }) {
		paths, _ := filepath.Glob(pattern)
		for _, path := range append(paths, pattern) {
			text, _ := os.ReadFile(path) // a file that only nodes have is judged by its name
			if strings.Contains(filepath.Base(path), "nvmecr") || strings.Contains(string(text), "nvmecr") {
				return f
			}
		}
	}
	return f.problem(findingPoor, "as seen from here it does not call nvmecr-hook.sh; "+remedy)
}

// pluginLine is a line of plugstack.conf: optional or required, with plugin and arguments; or include, with other
// files.
var pluginLine = regexp.MustCompile(`^\s*(optional|required|include)\s+(\S+)\s*([^#]*)`)

// checkPlugins checks the SPANK plugin that adds the option --checkpoint.
func checkPlugins(conf slurmConf) finding {
	path := cmp.Or(conf["PlugStackConfig"], filepath.Join(filepath.Dir(conf["SLURM_CONF"]), "plugstack.conf"))
	f := newFinding("plugstack.conf", "%s", path)
	how, plugin, args := findPlugin(path)
	switch {
	case plugin == "":
		return f.problem(findingPoor, "it has no nvmecr-spank.so: without that jobs ask by --comment or --gres, and their scripts call nvmecr run")
	case !filepath.IsAbs(plugin):
		return newFinding("plugstack.conf", "%s of %s", plugin, path).problem(findingPoor, "Slurm searches it in its PluginDir: give the absolute path")
	}
	f = newFinding("plugstack.conf", "%s %s %s", how, plugin, strings.Join(args, " "))
	if _, err := os.Stat(plugin); err != nil {
		return f.problem(findingMissing, "the file is not there: make install where Slurm's spank.h is")
	}
	if len(args) == 0 {
		return f.problem(findingPoor, "without the path of nvmecr as its argument, scripts have to call nvmecr run")
	}
	if _, err := exec.LookPath(args[0]); err != nil || !filepath.IsAbs(args[0]) {
		return f.problem(findingMissing, args[0]+" is not the path of a program: no task of a job with space starts")
	}
	if how == "required" {
		return f.problem(findingPoor, "on hosts without the plugin every sbatch and srun fails: write optional")
	}
	return f
}

// findPlugin returns the parts of the line about the plugin in a plugstack.conf or in a file that it includes.
func findPlugin(path string) (how, plugin string, args []string) {
	text, _ := os.ReadFile(path) // a missing file has no lines
	for line := range strings.Lines(string(text)) {
		m := pluginLine.FindStringSubmatch(line)
		switch {
		case m == nil:
		case m[1] != "include" && strings.HasPrefix(filepath.Base(m[2]), "nvmecr-spank"):
			return m[1], m[2], strings.Fields(m[3])
		case m[1] == "include":
			included, _ := filepath.Glob(m[2])
			for _, other := range included {
				if other == path {
					continue
				}
				if how, plugin, args = findPlugin(other); plugin != "" {
					return how, plugin, args
				}
			}
		}
	}
	return "", "", nil
}

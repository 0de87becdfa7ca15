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
		all = append(all, finds("targets", "none in %s has an admin command", o.inventory).lacks(findingMissing, "no job gets space without one: see docs/slurm.md"))
	}
	for _, t := range h.Inventory.Targets {
		if len(t.Admin) == 0 {
			continue
		}
		all = append(all, checkPlace(h, t)...)
		f := finds("target "+t.Name, "%s", strings.Join(t.Admin, " "))
		if names, err := h.Targets.List(cmd.Context(), t); err != nil {
			f = finds("target "+t.Name, "%s", flat(err)).lacks(findingMissing, "the admin command of the inventory has to work as Slurm's user, without a terminal")
		} else {
			f.Found = fmt.Sprintf("%s: %d namespaces", f.Found, len(names))
		}
		all = append(all, f)
	}
	if err != nil {
		all = append(all, finds("slurm.conf", "%v", err).lacks(findingMissing, "check runs on a host of the cluster"))
	} else {
		all = append(all, checkSlurmConf(conf)...)
		all = append(all, checkPlugins(conf))
	}
	return (&hostCheckOptions{json: o.json}).print(cmd.OutOrStdout(), all)
}

// flat is an error on one line.
func flat(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (o *slurmOptions) checkState(conf slurmConf) finding {
	f := finds("state directory", "%s", o.state)
	info, err := os.Stat(o.state)
	if err != nil {
		return finds("state directory", "%v", err).lacks(findingMissing, "make it on a file system that the nodes share, for Slurm's user (mode 0700)")
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch user := conf["SlurmUser"]; {
	case !info.IsDir():
		return f.lacks(findingMissing, "it is no directory: name one with --state")
	case info.Mode().Perm()&0o077 != 0:
		return f.lacks(findingMissing, "it has keys in it, and others can get at it: chmod 700")
	case ok && user != "" && !strings.HasSuffix(user, fmt.Sprintf("(%d)", owner.Uid)):
		return f.lacks(findingMissing, fmt.Sprintf("the hooks of the controller run as %s, and it belongs to user %d: chown", user, owner.Uid))
	}
	return f
}

// checkPlace looks whether it is known where a target is.
func checkPlace(h *slurm.Hooks, t site.Target) []finding {
	for _, place := range []string{t.Node, t.Switch} {
		if _, known := h.Network.Switch(place); known || h.Network.Nodes() == 0 {
			return nil
		}
	}
	return []finding{finds("target "+t.Name, "node %q", cmp.Or(t.Node, t.Switch)).lacks(findingPoor, "the topology does not have it, so jobs may get it although a switch of theirs fails with it: the names of both files have to agree")}
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

// hookLines are the lines of Slurm's configuration that name its hooks.
var hookLines = []struct{ name, remedy string }{
	{"PrologSlurmctld", "without it no job has space"},
	{"EpilogSlurmctld", "without it the end of a job is noted by the next reconcile only"},
	{"Prolog", "without it no job has its key on a node"},
	{"Epilog", "without it keys are left on nodes"},
	{"TaskProlog", "without it jobs do not know their targets"},
}

// slurmConf is Slurm's configuration, as the controller has it.
type slurmConf map[string]string

var confLine = regexp.MustCompile(`(?m)^(\w+)(?:\[\d+\])?\s*= (.*)$`)

// readSlurmConf asks the controller.
func readSlurmConf(ctx context.Context) (slurmConf, error) {
	out, err := exec.CommandContext(ctx, "scontrol", "show", "config").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("scontrol show config: %w: %s", err, strings.TrimSpace(string(out)))
	}
	conf := make(slurmConf)
	for _, m := range confLine.FindAllStringSubmatch(string(out), -1) {
		if value := strings.TrimSpace(m[2]); value != "(null)" {
			conf[m[1]] = strings.TrimSpace(conf[m[1]] + " " + value) // of hooks there may be several
		}
	}
	return conf, nil
}

func checkSlurmConf(conf slurmConf) (all []finding) {
	for _, h := range hookLines {
		all = append(all, checkHook(h.name, conf[h.name], h.remedy))
	}
	flags := finds("PrologFlags", "%s", cmp.Or(conf["PrologFlags"], "(null)"))
	if !strings.Contains(conf["PrologFlags"], "Alloc") {
		flags = flags.lacks(findingMissing, "without Alloc the Prolog runs when the first task starts, after the batch script has")
	}
	return append(all, flags)
}

// checkHook looks whether the programs of a hook, which are there or match, have to do with nvmecr: a site may call our script from one of its own.
func checkHook(name, programs, remedy string) finding {
	if programs == "" {
		return finds(name, "(null)").lacks(findingMissing, remedy+": see docs/slurm.md")
	}
	f := finds(name, "%s", programs)
	for _, pattern := range strings.FieldsFunc(programs, func(c rune) bool { return c == ' ' || c == ',' }) {
		paths, _ := filepath.Glob(pattern)
		for _, path := range append(paths, pattern) {
			text, _ := os.ReadFile(path) // what is on nodes alone has its name
			if strings.Contains(filepath.Base(path), "nvmecr") || strings.Contains(string(text), "nvmecr") {
				return f
			}
		}
	}
	return f.lacks(findingPoor, "as seen from here it does not call nvmecr-hook.sh; "+remedy)
}

// pluginLine is one of plugstack.conf: how much the plugin is needed, its file and arguments, or which other files belong to this one.
var pluginLine = regexp.MustCompile(`^\s*(optional|required|include)\s+(\S+)\s*([^#]*)`)

// checkPlugins looks for the plugin that gives jobs the option --checkpoint.
func checkPlugins(conf slurmConf) finding {
	path := cmp.Or(conf["PlugStackConfig"], filepath.Join(filepath.Dir(conf["SLURM_CONF"]), "plugstack.conf"))
	f := finds("plugstack.conf", "%s", path)
	how, plugin, args := findPlugin(path)
	switch {
	case plugin == "":
		return f.lacks(findingPoor, "it has no nvmecr-spank.so: without that jobs ask by --comment or --gres, and their scripts call nvmecr run")
	case !filepath.IsAbs(plugin):
		return finds("plugstack.conf", "%s of %s", plugin, path).lacks(findingPoor, "it is looked for in Slurm's PluginDir: give the whole path")
	}
	f = finds("plugstack.conf", "%s %s %s", how, plugin, strings.Join(args, " "))
	if _, err := os.Stat(plugin); err != nil {
		return f.lacks(findingMissing, "the file is not there: make install where Slurm's spank.h is")
	}
	if len(args) == 0 {
		return f.lacks(findingPoor, "without the path of nvmecr behind it scripts have to call nvmecr run")
	}
	if _, err := exec.LookPath(args[0]); err != nil || !filepath.IsAbs(args[0]) {
		return f.lacks(findingMissing, args[0]+" is not the path of a program: no task of a job with space starts")
	}
	if how == "required" {
		return f.lacks(findingPoor, "where it is missing every sbatch and srun fails: write optional")
	}
	return f
}

// findPlugin returns the line of a plugstack.conf, or of what that includes, that has our plugin.
func findPlugin(path string) (how, plugin string, args []string) {
	text, _ := os.ReadFile(path) // one that is not there has no line
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

package config

import (
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"nvmecr/balancer"
	"nvmecr/internal/parttable"
	"nvmecr/internal/runrecord"
	"nvmecr/nvmf"
)

// A Setting is one row of the table.
type Setting struct {
	Name     string // name of the flag, without dashes
	Help     string // one line, lower case; the word in backquotes names the value
	Exported bool   // passed on to the application's processes
	Repeat   bool   // the flag may be repeated; the variable joins the values with ';'
	Switch   bool   // the flag may stand without a value and then means true

	initial func() string
	parse   func(c *Config, v string) error
	format  func(c *Config) string
}

// Env returns the name of the environment variable.
func (s *Setting) Env() string {
	return "NVMECR_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// Default returns the default in the form the environment has it.
func (s *Setting) Default() string { return s.initial() }

func mountPoint(v string) (string, error) {
	if !path.IsAbs(v) || path.Clean(v) == "/" {
		return "", fmt.Errorf("%q is not an absolute path below / such as /nvmecr", v)
	}
	return path.Clean(v), nil
}

// settings is the table.
var settings = []Setting{
	{
		Name: "name", Exported: true,
		Help:    "`NAME` of the store; a run of the same name restarts from what the last one left",
		initial: text("default"),
		parse: func(c *Config, v string) error {
			c.Name = v
			if strings.HasPrefix(v, "-") {
				return fmt.Errorf("%q begins with a dash, as an option does", v)
			}
			return parttable.CheckName(v)
		},
		format: func(c *Config) string { return c.Name },
	},
	{
		Name: "target", Exported: true, Repeat: true,
		Help:    "`NAMESPACE` to use, repeatable, order matters: \"trtype:TCP traddr:... trsvcid:4420 subnqn:... ns:1\", file:PATH or mem:SIZE; without one an embedded target is started",
		initial: text(""),
		parse:   parseTargets,
		format:  formatTargets,
	},
	{
		Name: "mapping", Exported: true,
		Help:    "`MAPPING` of ranks to targets in a new store: round-robin, or a list such as 0*28,1*28, 28 ranks on the first target and 28 on the second, repeated for further ranks; or a list by hosts, as nvmecr plan prints it",
		initial: text(balancer.Plan{}.String()),
		parse: func(c *Config, v string) (err error) {
			c.Mapping, err = balancer.ParsePlan(v)
			return err
		},
		format: func(c *Config) string { return c.Mapping.String() },
	},
	{
		Name: "mount", Exported: true,
		Help:    "`DIRECTORY` under which the application finds the files of the store",
		initial: text("/nvmecr"),
		parse: func(c *Config, v string) (err error) {
			c.Mount, err = mountPoint(v)
			return err
		},
		format: func(c *Config) string { return c.Mount },
	},
	{
		Name: "mount-all", Exported: true,
		Help:    "`DIRECTORY` under which all processes of the job can read the files of all ranks, with --view=rank; none by default",
		initial: text(""),
		parse: func(c *Config, v string) (err error) {
			if c.MountAll = v; v != "" {
				c.MountAll, err = mountPoint(v)
			}
			return err
		},
		format: func(c *Config) string { return c.MountAll },
	},
	{
		Name:    "size",
		Help:    "`SIZE` of the embedded target's namespace, shared by all ranks, such as 512M or 4G; by default half of the free space of its file system, of which only written parts are allocated",
		initial: text(""),
		parse: func(c *Config, v string) error {
			if v == "" {
				c.Size = 0
				return nil
			}
			return size(func(c *Config) *nvmf.Bytes { return &c.Size })(c, v)
		},
		format: func(c *Config) string {
			if c.Size == 0 {
				return ""
			}
			return sizeText(c.Size)
		},
	},
	{
		Name: "fresh", Switch: true,
		Help:    "start over: all files of the store are lost",
		initial: text("false"),
		parse:   boolean(func(c *Config) *bool { return &c.Fresh }),
		format:  func(c *Config) string { return strconv.FormatBool(c.Fresh) },
	},
	{
		Name: "timeout", Exported: true,
		Help:    "`TIME` to wait for a target that does not answer, and at the start for the rank that formats the store, such as 90s or 5m",
		initial: text("60s"),
		parse:   parseTimeout,
		format:  func(c *Config) string { return c.Timeout.String() },
	},
	{
		Name: "hugeblock", Exported: true,
		Help:    "`SIZE` of a hugeblock, the unit of allocation, 4K to 4M; fixed when the store is formatted",
		initial: text("32K"),
		parse:   parseHugeblock,
		format:  func(c *Config) string { return sizeText(c.Hugeblock) },
	},
	{
		Name: "hostnqn", Exported: true,
		Help:    "`NQN` by which targets identify this host; by default that of /etc/nvme/hostnqn, else one made from the machine's and the user's id",
		initial: text(""),
		parse: func(c *Config, v string) error {
			c.HostNQN = v
			return CheckNQN(v)
		},
		format: func(c *Config) string { return c.HostNQN },
	},
	{
		Name: "dhchap-secret", Exported: true,
		Help:    "`FILE` with the key by which this host authenticates to targets, readable by its owner alone; see `nvmecr keygen`",
		initial: text(""),
		parse:   func(c *Config, v string) error { c.Secret = v; return nil },
		format:  func(c *Config) string { return c.Secret },
	},
	{
		Name: "dhchap-ctrl-secret", Exported: true,
		Help:    "`FILE` with the key by which targets have to authenticate to this host; a target that cannot is refused",
		initial: text(""),
		parse:   func(c *Config, v string) error { c.ControllerSecret = v; return nil },
		format:  func(c *Config) string { return c.ControllerSecret },
	},
	{
		Name: "tls-psk", Exported: true,
		Help:    "`FILE` with the pre-shared key by which connections over TCP use TLS, readable by its owner alone",
		initial: text(""),
		parse:   func(c *Config, v string) error { c.TLSKey = v; return nil },
		format:  func(c *Config) string { return c.TLSKey },
	},
	{
		Name: "driver", Exported: true,
		Help:    "`go|spdk`: driver of namespaces over TCP; RDMA and PCIe always use spdk, which needs a build with it (see nvmecr version)",
		initial: text(string(DriverGo)),
		parse: func(c *Config, v string) error {
			switch d := Driver(v); d {
			case DriverGo, DriverSPDK:
				c.Driver = d
				return nil
			}
			return fmt.Errorf("%q is not go or spdk", v)
		},
		format: func(c *Config) string { return string(c.Driver) },
	},
	{
		Name: "header-digest", Exported: true, Switch: true,
		Help:    "CRC-32C on the headers of NVMe/TCP PDUs",
		initial: text("false"),
		parse:   boolean(func(c *Config) *bool { return &c.HeaderDigest }),
		format:  func(c *Config) string { return strconv.FormatBool(c.HeaderDigest) },
	},
	{
		Name: "data-digest", Exported: true, Switch: true,
		Help:    "CRC-32C on the data of NVMe/TCP PDUs",
		initial: text("false"),
		parse:   boolean(func(c *Config) *bool { return &c.DataDigest }),
		format:  func(c *Config) string { return strconv.FormatBool(c.DataDigest) },
	},
	{
		Name: "unfenced", Exported: true, Switch: true,
		Help:    "take partitions over even if a process of an earlier run may live and the target has no fence against its writes",
		initial: text("false"),
		parse:   boolean(func(c *Config) *bool { return &c.Unfenced }),
		format:  func(c *Config) string { return strconv.FormatBool(c.Unfenced) },
	},
	{
		Name: "takeover", Switch: true,
		Help:    "take the store from a run in progress, on this host or another one, whose writes then fail",
		initial: text("false"),
		parse:   boolean(func(c *Config) *bool { return &c.Takeover }),
		format:  func(c *Config) string { return strconv.FormatBool(c.Takeover) },
	},
	{
		Name:    "job-id",
		Help:    "`ID` of the job, up to 64 characters, the same for each nvmecr run that the launcher starts on a node of it: together they are one run of the store",
		initial: text(""),
		parse: func(c *Config, v string) error {
			if len(v) > runrecord.MaxJob {
				return fmt.Errorf("%q has more than %d characters", v, runrecord.MaxJob)
			}
			c.Job = v
			return nil
		},
		format: func(c *Config) string { return c.Job },
	},
	{
		Name: "max-ranks", Exported: true,
		Help:    "`N` ranks of the largest program, if programs of several sizes run at the same time in one tree: the store has partitions for all these ranks from the start",
		initial: text("0"),
		parse: func(c *Config, v string) error {
			n, err := strconv.ParseUint(v, 10, 24)
			c.MaxRanks = int(n)
			if err != nil {
				return fmt.Errorf("%q is not a number of ranks", v)
			}
			return nil
		},
		format: func(c *Config) string { return strconv.Itoa(c.MaxRanks) },
	},
	{
		Name: "level2", Exported: true,
		Help:    "existing `DIRECTORY` of a parallel file system, or s3://BUCKET/PREFIX, to which checkpoints are copied from the store; see nvmecr drain",
		initial: text(""),
		parse: func(c *Config, v string) (err error) {
			if c.Level2 = v; c.Level2IsDirectory() {
				c.Level2, err = filepath.Abs(v)
			}
			return err
		},
		format: func(c *Config) string { return c.Level2 },
	},
	{
		Name: "level2-every", Exported: true,
		Help:    "copy each `N`th checkpoint to --level2, or one in a time such as 30m; the newest one is copied when the job ends, too",
		initial: text("1"),
		parse:   func(c *Config, v string) error { c.Level2Every = v; return nil },
		format:  func(c *Config) string { return c.Level2Every },
	},
	{
		Name: "level2-pattern", Exported: true,
		Help:    "`PATTERN` of the checkpoints that are copied to --level2, as for nvmecr latest; by default those with a number in their names",
		initial: text(""),
		parse:   func(c *Config, v string) error { c.Level2Pattern = v; return nil },
		format:  func(c *Config) string { return c.Level2Pattern },
	},
	{
		Name: "compress", Exported: true,
		Help:    "`lz4|zstd`: compress files that are copied to --level2, to FILE.lz4 or FILE.zst; by default they are not compressed",
		initial: text(""),
		parse: func(c *Config, v string) error {
			if c.Compress = v; v != "" && v != "lz4" && v != "zstd" {
				return fmt.Errorf("%q is not lz4 or zstd", v)
			}
			return nil
		},
		format: func(c *Config) string { return c.Compress },
	},
	{
		Name: "incremental", Exported: true, Switch: true,
		Help:    "share equal parts of files on --level2 with the previous checkpoint; its file system must be able to clone, as XFS and Btrfs are",
		initial: text("false"),
		parse:   boolean(func(c *Config) *bool { return &c.Incremental }),
		format:  func(c *Config) string { return strconv.FormatBool(c.Incremental) },
	},
	{
		Name: "copies", Exported: true,
		Help:    "`none|partner|rs:K+M`: whether checkpoints are kept on other targets, too: a second time, or as K shards of data and M of parity in as many failure domains; they get half of each target, when it is formatted",
		initial: text(string(CopiesNone)),
		parse: func(c *Config, v string) error {
			copies := Copies(v)
			if data, _ := copies.Shards(); data == 0 && copies != CopiesNone && copies != CopiesPartner {
				return fmt.Errorf("%q is not none, partner, or rs:K+M with numbers whose sum is at most %d, such as rs:4+2", v, MaxShards)
			}
			c.Copies = copies
			return nil
		},
		format: func(c *Config) string { return string(c.Copies) },
	},
	{
		Name: "copies-sync", Exported: true, Switch: true,
		Help:    "with --copies partner: mirror each target on one of another failure domain, so that a write returns when it is on both, and the job continues when a target is lost; fixed when the store is formatted",
		initial: text("false"),
		parse:   boolean(func(c *Config) *bool { return &c.CopiesSync }),
		format:  func(c *Config) string { return strconv.FormatBool(c.CopiesSync) },
	},
	{
		Name:    "keep",
		Help:    "while the job runs keep only the newest `N` complete checkpoints of each series, on each level; or auto: as many in the store as leave space for two more; by default all",
		initial: text(""),
		parse:   func(c *Config, v string) error { c.Keep = v; return nil },
		format:  func(c *Config) string { return c.Keep },
	},
	{
		Name:    "mtbf",
		Help:    "mean `TIME` between failures of the job, such as 24h or 7d: the run ends with a line on the time lost to checkpoints and failures; see nvmecr advise",
		initial: text(""),
		parse:   func(c *Config, v string) error { c.MTBF = v; return nil },
		format:  func(c *Config) string { return c.MTBF },
	},
	{
		// Not a Switch: users give it to turn it off.
		Name:    "fuse",
		Help:    "export the files of the run through FUSE, for programs that the preloaded library does not reach, `on|off`; on if this host has FUSE",
		initial: text("on"),
		parse:   boolean(func(c *Config) *bool { return &c.FUSE }),
		format:  onOff(func(c *Config) bool { return c.FUSE }),
	},
	{
		Name: "view", Exported: true,
		Help:    "`job|rank`: one tree for all processes of the job, or private files for each rank; fixed when the store is formatted",
		initial: text(string(ViewJob)),
		parse: func(c *Config, v string) error {
			switch view := View(v); view {
			case ViewJob, ViewRank:
				c.View = view
				return nil
			}
			return fmt.Errorf("%q is not job or rank", v)
		},
		format: func(c *Config) string { return string(c.View) },
	},
	{
		// Not a Switch: users give it to turn it off.
		Name: "data-checksum", Exported: true,
		Help:    "CRC-64 on file data, `on|off`; fixed when the store is formatted",
		initial: text("on"),
		parse:   boolean(func(c *Config) *bool { return &c.DataChecksum }),
		format:  onOff(func(c *Config) bool { return c.DataChecksum }),
	},
	{
		Name: "durability", Exported: true,
		Help:    "`write|close`: whether a write survives its process when it returns, or at the next fsync or close, which then also return its errors; with close small writes are faster",
		initial: text(string(DurableWrite)),
		parse: func(c *Config, v string) error {
			switch d := Durability(v); d {
			case DurableWrite, DurableClose:
				c.Durability = d
				return nil
			}
			return fmt.Errorf("%q is not write or close", v)
		},
		format: func(c *Config) string { return string(c.Durability) },
	},
	{
		Name: "log", Exported: true,
		Help:    "`LEVEL` of messages on stderr: error, or info, which adds mounts, waits and background writes",
		initial: text(string(LogError)),
		parse: func(c *Config, v string) error {
			switch l := LogLevel(v); l {
			case LogError, LogInfo:
				c.Log = l
				return nil
			}
			return fmt.Errorf("%q is not error or info", v)
		},
		format: func(c *Config) string { return string(c.Log) },
	},
}

func byEnv(name string) *Setting {
	for i := range settings {
		if settings[i].Env() == name {
			return &settings[i]
		}
	}
	return nil
}

func text(s string) func() string { return func() string { return s } }

// onOff formats a boolean that users give to turn something off.
func onOff(field func(c *Config) bool) func(c *Config) string {
	return func(c *Config) string {
		if field(c) {
			return "on"
		}
		return "off"
	}
}

func boolean(field func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, v string) (err error) {
		*field(c), err = ParseSwitch(v)
		return err
	}
}

// ParseSwitch parses on or off, and their synonyms.
func ParseSwitch(v string) (bool, error) {
	switch strings.ToLower(v) {
	case "on", "true", "yes", "1":
		return true, nil
	case "off", "false", "no", "0":
		return false, nil
	}
	return false, fmt.Errorf("%q is not on or off", v)
}

func size(field func(*Config) *nvmf.Bytes) func(*Config, string) error {
	return func(c *Config, v string) (err error) {
		*field(c), err = nvmf.ParseSize(v)
		return err
	}
}

// sizeText prints a size in the shortest form ParseSize reads back exactly.
func sizeText(b nvmf.Bytes) string {
	for _, u := range []struct {
		size nvmf.Bytes
		name string
	}{{nvmf.TiB, "T"}, {nvmf.GiB, "G"}, {nvmf.MiB, "M"}, {nvmf.KiB, "K"}} {
		if b >= u.size && b%u.size == 0 {
			return strconv.FormatUint(uint64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatUint(uint64(b), 10)
}

func parseHugeblock(c *Config, v string) error {
	b, err := nvmf.ParseSize(v)
	if err != nil {
		return err
	}
	if b < 4*nvmf.KiB || b > 4*nvmf.MiB || b&(b-1) != 0 {
		return fmt.Errorf("%q is not a power of two from 4K to 4M", v)
	}
	c.Hugeblock = b
	return nil
}

// parseTimeout reads a duration; a bare number is seconds.
func parseTimeout(c *Config, v string) error {
	d, err := time.ParseDuration(v)
	if n, e := strconv.ParseUint(v, 10, 31); e == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not a time above zero such as 90s or 5m", v)
	}
	c.Timeout = d
	return nil
}

func parseTargets(c *Config, v string) error {
	var targets []nvmf.TransportID
	for _, s := range strings.Split(v, ";") {
		if strings.TrimSpace(s) == "" {
			continue
		}
		id, err := nvmf.ParseTransportID(s)
		if err != nil {
			return err
		}
		targets = append(targets, id)
	}
	c.Targets = targets
	return nil
}

func formatTargets(c *Config) string {
	s := make([]string, len(c.Targets))
	for i, t := range c.Targets {
		s[i] = t.String()
	}
	return strings.Join(s, ";")
}

// check returns an error for settings that contradict each other.
func (c *Config) check() error {
	seen := make(map[nvmf.TransportID]bool)
	for _, t := range c.Targets {
		if seen[t] && t.Transport != nvmf.Mem {
			return fmt.Errorf("--target (NVMECR_TARGET): %s is named twice, name each namespace once", t)
		}
		seen[t] = true
		if t.Transport == nvmf.File && strings.Contains(t.Address, ";") {
			return fmt.Errorf("--target (NVMECR_TARGET): the path %q has a ';', which separates targets; rename the file", t.Address)
		}
	}
	return nil
}

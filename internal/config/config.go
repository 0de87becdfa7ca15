package config

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"nvmecr/balancer"
	"nvmecr/nvmf"
)

// LogLevel says what the runtime prints on stderr.
type LogLevel string

// The levels, each including the ones before it.
const (
	LogError LogLevel = "error" // what makes a call fail
	LogInfo  LogLevel = "info"  // and what was mounted, waited for, written in the background
)

// Driver says what talks to controllers over TCP; over RDMA and PCIe it is SPDK.
type Driver string

// The drivers.
const (
	DriverGo   Driver = "go"
	DriverSPDK Driver = "spdk" // if the program was built with it
)

// Durability says when a write is acknowledged.
type Durability string

// What a write that has returned may rely on.
const (
	DurableWrite Durability = "write" // it survives the process
	DurableClose Durability = "close" // it does after fsync or close, which also tell of errors
)

// A View says what a process of a job finds under the mount.
type View string

// The views.
const (
	ViewJob  View = "job"  // one tree, that of all processes of the job
	ViewRank View = "rank" // the files of its rank
)

// Copies says which copies of checkpoints a store keeps on other targets: one of these, or shards, as rs:4+2.
type Copies string

// The kinds of copies that are whole.
const (
	CopiesNone    Copies = "none"
	CopiesPartner Copies = "partner" // a second one, on a target of another failure domain
)

// MaxShards is the most shards of data and parity that a file is cut into.
const MaxShards = 32

// Shards returns how many shards of data and of parity each file is cut into; zeros if it is not.
func (c Copies) Shards() (data, parity int) {
	n, _ := fmt.Sscanf(string(c), "rs:%d+%d", &data, &parity)
	if n != 2 || string(c) != fmt.Sprintf("rs:%d+%d", data, parity) || min(data, parity) < 1 || max(data, parity) >= MaxShards || data+parity > MaxShards {
		return 0, 0
	}
	return data, parity
}

// JobVariable names the store in whose job a process runs. The settings in the
// environment are then that store's: a command there that is about another
// store leaves them alone.
const JobVariable = "NVMECR_JOB"

// RunVariable holds the id of the run a process belongs to, a UUID: by it the
// targets tell the processes of one run from those of another.
const RunVariable = "NVMECR_RUN"

// ExportVariable holds the directory at which `nvmecr serve` exports the files of the run to the kernel of this host.
const ExportVariable = "NVMECR_EXPORT"

// CommandVariable holds the path of nvmecr, which processes of a job start where they need `nvmecr serve` and there is none.
const CommandVariable = "NVMECR_COMMAND"

// IndexVariable holds the addresses, "IP:PORT" joined by commas, at which processes on other hosts reach the index of the job's tree, and
// IndexSecretVariable what they prove to it that they know: 32 bytes, hexadecimal.
const (
	IndexVariable       = "NVMECR_INDEX"
	IndexSecretVariable = "NVMECR_INDEX_SECRET"
)

// Config holds a value for each setting. The comments name the flag.
type Config struct {
	Name      string             // --name: the store, see parttable.CheckName
	Targets   []nvmf.TransportID // --target, in order; none means the embedded target
	Mapping   balancer.Plan      // --mapping: of ranks to targets
	Mount     string             // --mount: absolute, clean, not "/"
	MountAll  string             // --mount-all: the same, or "": nowhere
	Size      nvmf.Bytes         // --size: of the embedded target's namespace; 0: by the disk
	Fresh     bool               // --fresh: start over; for the command only
	Timeout   time.Duration      // --timeout: for a target or a rank that does not answer
	Hugeblock nvmf.Bytes         // --hugeblock: unit of allocation, fixed at format
	HostNQN   string             // --hostnqn: who we are to the targets
	// --dhchap-secret, --dhchap-ctrl-secret: files, see Secrets
	Secret, ControllerSecret string
	TLSKey                   string     // --tls-psk: a file, see TLSPSK
	Driver                   Driver     // --driver: what reaches namespaces over TCP
	HeaderDigest             bool       // --header-digest: CRC-32C on PDU headers
	DataDigest               bool       // --data-digest: CRC-32C on PDU data
	DataChecksum             bool       // --data-checksum: CRC-64 on file data, fixed at format
	Durability               Durability // --durability: when a write is acknowledged
	View                     View       // --view: what a process finds under the mount, fixed at format
	Log                      LogLevel   // --log
	Unfenced                 bool       // --unfenced: mount also where an old writer may live
	Takeover                 bool       // --takeover: also from a run in progress; for the command only
	Job                      string     // --job-id: of runs that are one; for the command only
	MaxRanks                 int        // --max-ranks: of the largest program of the job; 0: not known
	Level2                   string     // --level2: an absolute path, or the URL of a bucket; "": none
	Keep                     string     // --keep: a number, auto, or ""; for the command only
	MTBF                     string     // --mtbf: a time, or ""; for the command only
	Level2Every              string     // --level2-every: a number or a time
	Level2Pattern            string     // --level2-pattern: which checkpoints are copied there; "": all that are found
	Compress                 string     // --compress: how files of --level2 are stored: lz4, zstd or "", as they are
	Incremental              bool       // --incremental: what consecutive checkpoints of --level2 have in common is stored once
	Copies                   Copies     // --copies: on other targets
	CopiesSync               bool       // --copies-sync: each target is mirrored on another one, in place of copies
	FUSE                     bool       // --fuse: export the files by FUSE where that can be done; for the command only

	// Run is the id of the run; not a setting. Nil: it has none.
	Run uuid.UUID
	// Export is where the files are exported to the kernel; not a setting. "": nowhere.
	Export string
	// Command is the path of nvmecr; not a setting. "": not known.
	Command string
	// Index are the addresses of the index of the job's tree for other hosts, and IndexSecret what it asks for there; not
	// settings. nil: it is reached on its own host alone.
	Index       []string
	IndexSecret [32]byte

	// given holds the names of the settings that came from a flag or from
	// the environment: a recorded value does not replace them.
	given map[string]bool
}

// Default returns the configuration without flags and environment.
func Default() *Config {
	c := &Config{given: map[string]bool{}}
	for _, s := range settings {
		if err := s.parse(c, s.Default()); err != nil {
			panic(fmt.Sprintf("default of %s: %v", s.Name, err)) // caught by the tests
		}
	}
	return c
}

// FromEnv returns the configuration of a process started by `nvmecr run`:
// the environment, as getenv has it, over the defaults. Settings that are for the
// command alone are not read.
func FromEnv(getenv func(string) string) (*Config, error) {
	c := Default()
	if err := c.readEnv(getenv, func(s *Setting) bool { return s.Exported }); err != nil {
		return nil, err
	}
	if v := getenv(RunVariable); v != "" {
		run, err := uuid.Parse(v)
		if err != nil {
			return nil, fmt.Errorf("%s=%q is not a UUID: leave it to `nvmecr run`", RunVariable, v)
		}
		c.Run = run
	}
	c.Export, c.Command = getenv(ExportVariable), getenv(CommandVariable)
	if v := getenv(IndexVariable); v != "" {
		c.Index = strings.Split(v, ",")
		secret, err := hex.DecodeString(getenv(IndexSecretVariable))
		if err != nil || len(secret) != len(c.IndexSecret) {
			return nil, fmt.Errorf("%s is not 32 bytes in hexadecimal: leave it to `nvmecr run`", IndexSecretVariable)
		}
		c.IndexSecret = [32]byte(secret)
	}
	return c, c.check()
}

// Given reports whether the setting came from a flag or the environment.
func (c *Config) Given(name string) bool { return c.given[name] }

// Values returns the exported settings by name, in the form Adopt reads.
func (c *Config) Values() map[string]string {
	m := make(map[string]string)
	for _, s := range settings {
		if s.Exported {
			m[s.Name] = s.format(c)
		}
	}
	return m
}

// Adopt takes over recorded values (see Values) for settings that were not
// given. Names it does not know are left alone: a later version recorded them.
func (c *Config) Adopt(recorded map[string]string) error {
	for i := range settings {
		s := &settings[i]
		v, ok := recorded[s.Name]
		if !ok || c.given[s.Name] {
			continue
		}
		err := s.parse(c, v)
		if strings.IndexByte(v, 0) >= 0 {
			err = fmt.Errorf("%q has a zero byte, which no variable of the environment can have", v)
		}
		if err != nil {
			return fmt.Errorf("recorded value of --%s: %w", s.Name, err)
		}
	}
	return c.check()
}

// Exports returns the variables, as "NAME=value", that give a process this
// configuration. The names are what a launcher has to carry to other hosts.
func (c *Config) Exports() []string {
	var env []string
	for _, s := range settings {
		if v := s.format(c); s.Exported && v != "" {
			env = append(env, s.Env()+"="+v)
		}
	}
	if c.Run != uuid.Nil {
		env = append(env, RunVariable+"="+c.Run.String())
	}
	if c.Export != "" {
		env = append(env, ExportVariable+"="+c.Export)
	}
	if c.Command != "" {
		env = append(env, CommandVariable+"="+c.Command)
	}
	if len(c.Index) > 0 {
		env = append(env, IndexVariable+"="+strings.Join(c.Index, ","), IndexSecretVariable+"="+hex.EncodeToString(c.IndexSecret[:]))
	}
	return append(env, JobVariable+"="+c.Name)
}

// ofRun are the variables that are no setting's.
var ofRun = []string{JobVariable, RunVariable, ExportVariable, CommandVariable, IndexVariable, IndexSecretVariable}

// Level2IsDirectory reports whether there is a second level and it is a directory, to which all hosts of the job copy.
func (c *Config) Level2IsDirectory() bool {
	return c.Level2 != "" && !strings.HasPrefix(c.Level2, "s3://")
}

// Environ returns base without any variable of a setting, followed by
// Exports: the environment of a process that is to have this configuration
// and no other.
func (c *Config) Environ(base []string) []string {
	env := make([]string, 0, len(base)+len(settings))
	for _, kv := range base {
		name, _, _ := strings.Cut(kv, "=")
		if byEnv(name) == nil && !slices.Contains(ofRun, name) {
			env = append(env, kv)
		}
	}
	return append(env, c.Exports()...)
}

// readEnv applies the environment to those settings that want says and that
// were not given.
func (c *Config) readEnv(getenv func(string) string, want func(*Setting) bool) error {
	for i := range settings {
		s := &settings[i]
		v := getenv(s.Env())
		if v == "" || c.given[s.Name] || !want(s) {
			continue
		}
		if err := s.parse(c, v); err != nil {
			return fmt.Errorf("%s: %w", s.Env(), err)
		}
		c.given[s.Name] = true
	}
	return nil
}

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

// LogLevel selects what the runtime prints on stderr.
type LogLevel string

// The levels, each including the ones before it.
const (
	LogError LogLevel = "error" // errors of calls
	LogInfo  LogLevel = "info"  // also mounts, waits, and writes in the background
)

// Driver selects the driver for TCP. RDMA and PCIe always use SPDK.
type Driver string

// The drivers.
const (
	DriverGo   Driver = "go"
	DriverSPDK Driver = "spdk" // if the program was built with it
)

// Durability is the time at which written data is durable.
type Durability string

// Values of Durability.
const (
	DurableWrite Durability = "write" // when the write returns: data survives the process
	DurableClose Durability = "close" // after fsync or close, which also return errors of writing
)

// A View selects the files that a process of a job sees under the mount.
type View string

// The views.
const (
	ViewJob  View = "job"  // one tree, shared by all processes of the job
	ViewRank View = "rank" // the files of its own rank
)

// Copies selects the copies of checkpoints on other targets: one of these values, or shards, such as rs:4+2.
type Copies string

// Copies of whole files.
const (
	CopiesNone    Copies = "none"
	CopiesPartner Copies = "partner" // a second copy, on a target of another failure domain
)

// MaxShards is the maximum number of data and parity shards of a file.
const MaxShards = 32

// Shards returns the numbers of data and parity shards of each file; zeros if files are not cut.
func (c Copies) Shards() (data, parity int) {
	n, _ := fmt.Sscanf(string(c), "rs:%d+%d", &data, &parity)
	if n != 2 || string(c) != fmt.Sprintf("rs:%d+%d", data, parity) || min(data, parity) < 1 || max(data, parity) >= MaxShards || data+parity > MaxShards {
		return 0, 0
	}
	return data, parity
}

// JobVariable names the store of the job that a process belongs to. The settings in the environment are those of this
// store: a command about another store ignores them.
const JobVariable = "NVMECR_JOB"

// RunVariable has the id of the run that a process belongs to, a UUID. Targets distinguish the processes of different
// runs by it.
const RunVariable = "NVMECR_RUN"

// ExportVariable has the directory at which `nvmecr serve` exports the files of the run by FUSE.
const ExportVariable = "NVMECR_EXPORT"

// CommandVariable has the path of nvmecr. Processes of a job use it to start `nvmecr serve` if there is none on their
// host.
const CommandVariable = "NVMECR_COMMAND"

// IndexVariable has the addresses, "IP:PORT" joined by commas, of the index of the job's tree for other hosts.
// IndexSecretVariable has the secret of the run, 32 bytes in hexadecimal.
const (
	IndexVariable       = "NVMECR_INDEX"
	IndexSecretVariable = "NVMECR_INDEX_SECRET"
)

// Config has a value for each setting. The comments name the flag.
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
	HostNQN   string             // --hostnqn: NQN by which targets identify this host
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
	Unfenced                 bool       // --unfenced: mount even if an earlier writer may be alive
	Takeover                 bool       // --takeover: also from a run in progress; for the command only
	Job                      string     // --job-id: id of several runs that form one job; for the command only
	MaxRanks                 int        // --max-ranks: ranks of the largest program of the job; 0: unknown
	Level2                   string     // --level2: an absolute path, or the URL of a bucket; "": none
	Keep                     string     // --keep: a number, auto, or ""; for the command only
	MTBF                     string     // --mtbf: a time, or ""; for the command only
	Level2Every              string     // --level2-every: a number or a time
	Level2Pattern            string     // --level2-pattern: checkpoints to copy there; "": all
	Compress                 string     // --compress: format of files of --level2: lz4, zstd, or "" for none
	Incremental              bool       // --incremental: equal data of consecutive checkpoints of --level2 is stored once
	Copies                   Copies     // --copies: copies on other targets
	CopiesSync               bool       // --copies-sync: each target is mirrored on another one, instead of copies
	FUSE                     bool       // --fuse: export the files by FUSE if possible; for the command only

	// Run is the id of the run; not a setting. uuid.Nil: none.
	Run uuid.UUID
	// Export is the directory of the FUSE view; not a setting. "": none.
	Export string
	// Command is the path of nvmecr; not a setting. "": unknown.
	Command string
	// Index are the addresses of the index of the job's tree for other hosts, and IndexSecret is the secret of the
	// run; not settings. nil: the index is reached on its own host only.
	Index       []string
	IndexSecret [32]byte

	// given has the names of settings from a flag or from the environment, which recorded values do not replace.
	given map[string]bool
}

// Default returns the configuration without flags and environment.
func Default() *Config {
	c := &Config{given: map[string]bool{}}
	for _, s := range settings {
		if err := s.parse(c, s.Default()); err != nil {
			panic(fmt.Sprintf("default of %s: %v", s.Name, err)) // tests check all defaults
		}
	}
	return c
}

// FromEnv returns the configuration of a process started by `nvmecr run`: defaults, replaced by variables of getenv.
// Settings for the command only are not read.
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

// Adopt sets settings that were not given to recorded values (see Values). It ignores unknown names, which a later
// version has recorded.
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

// Exports returns the variables, as "NAME=value", of a process with this configuration. A launcher has to pass these
// names to other hosts.
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

// runVariables are the variables that are not settings.
var runVariables = []string{JobVariable, RunVariable, ExportVariable, CommandVariable, IndexVariable, IndexSecretVariable}

// Level2IsDirectory reports whether there is a second level and it is a directory, to which all hosts of the job copy.
func (c *Config) Level2IsDirectory() bool {
	return c.Level2 != "" && !strings.HasPrefix(c.Level2, "s3://")
}

// Environ returns base with its variables of settings replaced by Exports: the environment of a process with exactly
// this configuration.
func (c *Config) Environ(base []string) []string {
	env := make([]string, 0, len(base)+len(settings))
	for _, kv := range base {
		name, _, _ := strings.Cut(kv, "=")
		if byEnv(name) == nil && !slices.Contains(runVariables, name) {
			env = append(env, kv)
		}
	}
	return append(env, c.Exports()...)
}

// readEnv reads the variables of the settings that want selects, except of those that were given.
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

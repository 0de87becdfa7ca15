package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

var update = flag.Bool("update", false, "write docs/configuration.md anew")

// clearEnv unsets every variable of a setting for the test.
func clearEnv(t *testing.T) {
	for i := range settings {
		t.Setenv(settings[i].Env(), "")
	}
	t.Setenv(JobVariable, "")
}

func resolve(t *testing.T, args ...string) (*Config, error) {
	t.Helper()
	c := Default()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c.BindFlags(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return c, c.Resolve()
}

func TestDefaults(t *testing.T) {
	clearEnv(t)
	c, err := resolve(t)
	require.NoError(t, err)
	assert.Equal(t, "default", c.Name)
	assert.Empty(t, c.Targets)
	assert.Equal(t, "/nvmecr", c.Mount)
	assert.Equal(t, nvmf.Bytes(0), c.Size, "by the disk")
	assert.Equal(t, 32*nvmf.KiB, c.Hugeblock)
	assert.Equal(t, time.Minute, c.Timeout)
	assert.False(t, c.Fresh || c.HeaderDigest || c.DataDigest)
	assert.True(t, c.DataChecksum)
	assert.Equal(t, LogError, c.Log)
	assert.Equal(t, DriverGo, c.Driver)
}

func TestOrder(t *testing.T) {
	clearEnv(t)
	t.Setenv("NVMECR_NAME", "env")
	t.Setenv("NVMECR_HUGEBLOCK", "64K")
	c, err := resolve(t, "--name", "flag")
	require.NoError(t, err)
	assert.Equal(t, "flag", c.Name)
	assert.Equal(t, 64*nvmf.KiB, c.Hugeblock)
	assert.True(t, c.Given("name") && c.Given("hugeblock"))
	assert.False(t, c.Given("mount"))
	// Recorded values replace only settings that were not given.
	require.NoError(t, c.Adopt(map[string]string{"name": "recorded", "hugeblock": "4K", "mount": "/old", "later-version": "x"}))
	assert.Equal(t, "flag", c.Name)
	assert.Equal(t, 64*nvmf.KiB, c.Hugeblock)
	assert.Equal(t, "/old", c.Mount)
}

const tcp = "trtype:TCP traddr:10.0.0.5 subnqn:nqn.2014-08.org.example:a"

func TestTargets(t *testing.T) {
	clearEnv(t)
	t.Setenv("NVMECR_TARGET", "mem:1G")
	c, err := resolve(t, "--target", tcp, "--target", "file:rel")
	require.NoError(t, err)
	require.Len(t, c.Targets, 2, "flags replace the variable")
	assert.Equal(t, "10.0.0.5", c.Targets[0].Address)
	assert.True(t, filepath.IsAbs(c.Targets[1].Address))

	t.Setenv("NVMECR_TARGET", tcp+"; file:/a;")
	c, err = resolve(t)
	require.NoError(t, err)
	require.Len(t, c.Targets, 2)

	_, err = resolve(t, "--target", "file:/a", "--target", "file:/b/../a")
	require.ErrorContains(t, err, "twice")
}

// TestEnviron checks that FromEnv reads what Environ passes on.
func TestEnviron(t *testing.T) {
	clearEnv(t)
	c, err := resolve(t, "--name=n", "--target", tcp, "--target=file:/x", "--mount=/m", "--size=2G", "--fresh",
		"--timeout=90", "--hugeblock=1M", "--hostnqn=nqn.2014-08.org.nvmexpress:uuid:1", "--header-digest",
		"--data-digest", "--data-checksum=off", "--log=info")
	require.NoError(t, err)
	base := []string{"PATH=/bin", "NVMECR_FRESH=1", "NVMECR_NAME=other", "NVMECR_LIBRARY=kept"}
	env := c.Environ(base)
	assert.Contains(t, env, "PATH=/bin")
	assert.Contains(t, env, "NVMECR_LIBRARY=kept", "not a setting")
	assert.NotContains(t, strings.Join(env, "\n"), "FRESH")
	assert.NotContains(t, strings.Join(env, "\n"), "other")
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	got, err := FromEnv(os.Getenv)
	require.NoError(t, err)
	assert.True(t, c.Fresh)
	c.Fresh, c.Size = false, 0
	c.given, got.given = nil, nil
	assert.Equal(t, c, got)

	// A rank that inherits --fresh from the user's shell ignores it.
	t.Setenv("NVMECR_FRESH", "1")
	got, err = FromEnv(os.Getenv)
	require.NoError(t, err)
	assert.False(t, got.Fresh)
	c, err = resolve(t)
	require.NoError(t, err)
	assert.True(t, c.Fresh, "the command does")
}

// TestInsideAnotherJob checks that in a job the variables apply to the job's store only.
func TestInsideAnotherJob(t *testing.T) {
	clearEnv(t)
	job, err := resolve(t, "--name=job", "--target", tcp, "--hugeblock=64K")
	require.NoError(t, err)
	for _, kv := range job.Environ(nil) {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	c, err := resolve(t)
	require.NoError(t, err)
	assert.Equal(t, "job", c.Name)
	assert.Equal(t, job.Targets, c.Targets)
	c, err = resolve(t, "--name=other")
	require.NoError(t, err)
	assert.Empty(t, c.Targets)
	assert.Equal(t, 32*nvmf.KiB, c.Hugeblock)
	t.Setenv("NVMECR_NAME", "third")
	c, err = resolve(t)
	require.NoError(t, err)
	assert.Equal(t, "third", c.Name)
	assert.Empty(t, c.Targets)
}

func TestBadValues(t *testing.T) {
	for _, c := range []struct{ flag, value, text string }{
		{"name", "a/b", "letters"},
		{"name", strings.Repeat("x", 65), "1 to 64"},
		{"name", "-x", "dash"},
		{"target", "trtype:UDP traddr:a subnqn:b", "trtype"},
		{"mount", "relative", "absolute"},
		{"mount", "/", "absolute"},
		{"size", "lots", "64M"},
		{"timeout", "soon", "90s"},
		{"timeout", "0", "above zero"},
		{"timeout", "-5s", "above zero"},
		{"hugeblock", "33K", "power of two"},
		{"hugeblock", "2K", "4K to 4M"},
		{"hugeblock", "8M", "4K to 4M"},
		{"hostnqn", "me", "NQN"},
		{"hostnqn", "nqn." + strings.Repeat("x", 220), "223"},
		{"fresh", "maybe", "on or off"},
		{"data-checksum", "crc", "on or off"},
		{"log", "loud", "info"},
		{"copies", "two", "rs:K+M"},
		{"copies", "rs:4", "rs:K+M"},
		{"copies", "rs:4+0", "rs:K+M"},
		{"copies", "rs:+4+2", "rs:K+M"},
		{"copies", "rs:4+2x", "rs:K+M"},
		{"copies", "rs:30+3", "at most 32"},
	} {
		t.Run(c.flag+"="+c.value, func(t *testing.T) {
			clearEnv(t)
			_, err := resolve(t, "--"+c.flag+"="+c.value)
			require.ErrorContains(t, err, c.text)
			assert.Contains(t, err.Error(), "--"+c.flag)
			if c.value == "0" && c.flag == "fresh" {
				return
			}
			name := "NVMECR_" + strings.ToUpper(strings.ReplaceAll(c.flag, "-", "_"))
			t.Setenv(name, c.value)
			_, err = resolve(t)
			require.ErrorContains(t, err, c.text)
			assert.Contains(t, err.Error(), name)
		})
	}
}

func TestSwitches(t *testing.T) {
	clearEnv(t)
	for _, v := range []string{"on", "ON", "true", "yes", "1"} {
		c, err := resolve(t, "--data-digest="+v)
		require.NoError(t, err)
		assert.True(t, c.DataDigest, v)
	}
	for _, v := range []string{"off", "false", "No", "0"} {
		c, err := resolve(t, "--data-checksum="+v)
		require.NoError(t, err)
		assert.False(t, c.DataChecksum, v)
	}
}

// TestFormatIsParsed checks that each printed value can be parsed.
func TestFormatIsParsed(t *testing.T) {
	c := Default()
	require.NoError(t, c.Set("target", tcp))
	require.NoError(t, c.Set("size", "1234567"))
	for i := range settings {
		s := &settings[i]
		again := Default()
		require.NoError(t, s.parse(again, s.format(c)), s.Name)
		assert.Equal(t, s.format(c), s.format(again), s.Name)
	}
	require.Error(t, c.Set("colour", "red"))
}

func TestSomeFlags(t *testing.T) {
	clearEnv(t)
	c := Default()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c.BindFlags(fs, "name")
	assert.NotNil(t, fs.Lookup("name"))
	assert.Nil(t, fs.Lookup("fresh"))
}

func TestHostNQN(t *testing.T) {
	etc := t.TempDir()
	noID := hostNQN(etc, 1)
	assert.Regexp(t, `^nqn\.2014-08\.org\.nvmexpress:uuid:[0-9a-f-]{36}$`, noID)
	require.NoError(t, os.WriteFile(etc+"/machine-id", []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
	one := hostNQN(etc, 1)
	assert.Equal(t, one, hostNQN(etc, 1), "the same at every start")
	assert.NotEqual(t, one, hostNQN(etc, 2))
	assert.NotEqual(t, one, noID)
	require.NoError(t, os.Mkdir(etc+"/nvme", 0o700))
	require.NoError(t, os.WriteFile(etc+"/nvme/hostnqn", []byte("nqn.2014-08.org.nvmexpress:uuid:x\n"), 0o600))
	assert.Equal(t, "nqn.2014-08.org.nvmexpress:uuid:x", hostNQN(etc, 1))
	require.NoError(t, os.WriteFile(etc+"/nvme/hostnqn", []byte("rubbish\n"), 0o600))
	assert.Equal(t, one, hostNQN(etc, 1))
	c := Default()
	c.HostNQN = "nqn.mine"
	assert.Equal(t, "nqn.mine", c.Host())
}

// docs/configuration.md ends with the table.
func TestDocument(t *testing.T) {
	const name = "../../docs/configuration.md"
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	head, table, ok := strings.Cut(string(b), "-update -->\n")
	require.True(t, ok, "the comment before the table is missing")
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(head+"-update -->\n\n"+Markdown()), 0o644))
		return
	}
	assert.Equal(t, "\n"+Markdown(), table, "run: go test ./internal/config -update")
}

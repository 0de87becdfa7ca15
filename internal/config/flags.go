package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"nvmecr/nvmf"
)

// BindFlags adds a flag for each named setting; without names, for all. The values are set when fs is parsed; then
// call Resolve.
func (c *Config) BindFlags(fs *pflag.FlagSet, names ...string) {
	for i := range settings {
		s := &settings[i]
		if len(names) > 0 && !contains(names, s.Name) {
			continue
		}
		f := fs.VarPF(&flagValue{c: c, s: s}, s.Name, "", s.Help+" ["+s.Env()+"]")
		if s.Switch {
			f.NoOptDefVal = "true"
		}
	}
}

// Resolve completes a configuration whose flags were parsed: settings without a flag are read from the environment.
// Errors name the flag or the variable. Relative paths of targets and secrets become absolute, since the application
// may run in another directory.
func (c *Config) Resolve() error {
	if err := c.readEnv(os.Getenv, func(s *Setting) bool { return s.Name == "name" }); err != nil {
		return err
	}
	job := os.Getenv(JobVariable)
	mine := job == "" || job == c.Name
	if err := c.readEnv(os.Getenv, func(s *Setting) bool { return mine || !s.Exported }); err != nil {
		return err
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		if t.Transport != nvmf.File {
			continue
		}
		p, err := filepath.Abs(t.Address)
		if err != nil {
			return fmt.Errorf("--target %s: %w", t, err)
		}
		t.Address = p
	}
	for _, file := range []*string{&c.Secret, &c.ControllerSecret, &c.TLSKey} {
		if *file == "" {
			continue
		}
		p, err := filepath.Abs(*file)
		if err != nil {
			return fmt.Errorf("%s: %w", *file, err)
		}
		*file = p
	}
	return c.check()
}

// IsSetting reports whether Resolve reads the variable of the flag.
func IsSetting(name string) bool {
	for i := range settings {
		if settings[i].Name == name {
			return true
		}
	}
	return false
}

// Set gives a setting a value, as its flag would.
func (c *Config) Set(name, value string) error {
	for i := range settings {
		if s := &settings[i]; s.Name == name {
			return (&flagValue{c: c, s: s}).Set(value)
		}
	}
	return fmt.Errorf("there is no setting %q", name)
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// flagValue is a pflag.Value that writes one setting.
type flagValue struct {
	c *Config
	s *Setting
}

func (v *flagValue) String() string {
	if v.s == nil { // pflag calls String on a zero value to find the default
		return ""
	}
	return v.s.format(v.c)
}

// Set parses the value of the flag. A repeated flag adds to the values before.
func (v *flagValue) Set(text string) error {
	if v.s.Repeat && strings.TrimSpace(text) == "" {
		return errors.New("is empty; leave it out")
	}
	if v.s.Repeat && v.c.given[v.s.Name] {
		text = strings.TrimPrefix(v.s.format(v.c)+";"+text, ";")
	}
	if err := v.s.parse(v.c, text); err != nil {
		return err
	}
	v.c.given[v.s.Name] = true
	return nil
}

func (v *flagValue) Type() string {
	if v.s.Switch {
		return "bool"
	}
	return "string"
}

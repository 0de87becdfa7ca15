package command

import (
	"fmt"
	"os"

	"nvmecr/internal/config"
)

// stage copies the newest checkpoint from its copies or the second level to the store, if the store has not got it: as the first part of the job. A
// run that starts over, or that is part of another one, does not.
func (o *runOptions) stage(env []string, at surroundings) error {
	if o.cfg.Level2 == "" && o.cfg.Copies == config.CopiesNone || o.cfg.Fresh || o.joined || o.oneLevel {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	argv := []string{self, "restore", "--newer"}
	if o.cfg.Level2Pattern != "" {
		argv = append(argv, o.cfg.Level2Pattern)
	}
	code, err := runJob(argv, env, at)
	if err == nil && code != 0 {
		err = fmt.Errorf("the newest checkpoint is not in the store, and could not be copied there (exit status %d)", code)
	}
	return err
}

// Package installed finds other files of the same installation: libraries and programs.
package installed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Find returns the path of a file: in the directory of the running program, where the build puts it, or where an
// installation puts it. If there is none the error names a remedy.
func Find(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return "", err
	}
	bin := filepath.Dir(self)
	for _, dir := range []string{bin, filepath.Join(bin, "../lib"), filepath.Join(bin, "../lib/nvmecr")} {
		path := filepath.Join(dir, name)
		switch f, err := os.Stat(path); {
		case err == nil && !f.IsDir(): // not the directory lib/nvmecr
			return path, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
	}
	return "", fmt.Errorf("%s is not beside %s: run make, or reinstall", name, self)
}

// Package installed finds what belongs to the program that runs: its libraries, and
// the other programs of the same build.
package installed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Find returns the path of the file name: beside the running program, as the build
// leaves it, or where an installation puts it. Where there is none the error
// says what to do.
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
		case err == nil && !f.IsDir(): // a directory lib/nvmecr is not the program
			return path, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
	}
	return "", fmt.Errorf("%s is not beside %s: run make, or reinstall", name, self)
}

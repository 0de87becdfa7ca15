package apps

import "testing"

// TestFormats runs Python libraries for scientific file formats.
func TestFormats(t *testing.T) {
	for _, c := range []struct {
		library string
		except  string // files whose content differs between runs: times, addresses
	}{
		{"numpy", ``},
		{"h5py", `latest.h5`},
		{"netCDF4", ``},
		{"torch", `(old|script).pt`},
	} {
		t.Run(c.library, func(t *testing.T) {
			need(t, python, "python:numpy", "python:"+c.library)
			s := newStage(t)
			alike(t, s, c.except, func(dir string) []string {
				return []string{python, source(t, "formats.py"), c.library, dir}
			})
		})
	}
}

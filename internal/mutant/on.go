//go:build mutants

package mutant

import "os"

var on = Fault(os.Getenv("NVMECR_MUTANT"))

// On reports whether a fault is switched on.
func On(f Fault) bool { return f == on }

// Package demo is the demonstration: an unmodified application (LAMMPS) is killed in
// the middle of its work, together with the target of its checkpoints. It restarts from
// its newest complete checkpoint, and its result is the same as without the kill.
//
// Other end-to-end tests use its parts. A [Stage] is a test environment: it runs jobs
// in directories of its own, kills them with SIGKILL, and cleans up. [Survey] lists the
// checkpoints in a store from outside. A Stage is not safe for concurrent use; several
// stages may be used at the same time.
package demo

// Package crew starts the ranks of a benchmark, gives them orders and collects
// what these took. There is no MPI in it: a rank is any process that connects
// to the conductor, which is the process that holds the [Crew], and obeys its
// orders; rank/ is one in C that does what applications do, and [Serve] is the
// frame for one in Go.
//
// Where ranks come from:
//
//   - started by the conductor on its own host (Options.Ranks),
//   - by a launcher that the conductor starts (Options.Launch), such as
//     "srun -n 64",
//   - by the processes of a job that the conductor is itself a process of
//     (Options.Agents): see [Join].
//
// # Orders
//
// Text over TCP, one line each. A rank says "hello SECRET RANK SIZE HOST BOOT
// PID" and then, to each order, "ready" when everything is prepared that is
// not to be timed; the conductor releases all of them together with "go" and
// each answers "done" with NAME=NUMBER for what it took, begin and end among
// them. Instead of either a rank says "failed TEXT". "quit", or the end of the
// connection, ends it. Times are nanoseconds of CLOCK_MONOTONIC, which is the
// same in all processes that share a BOOT id.
//
// A Crew is used by one goroutine at a time.
package crew

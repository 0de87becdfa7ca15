// Package workers starts the worker processes of a benchmark, its ranks, sends
// commands to them, and collects how long each took. It does not use MPI. A rank is
// any process that connects to the coordinator, the process that has the [Group],
// and executes its commands. rank/ is a rank in C that does what applications do;
// [Serve] is for ranks in Go.
//
// Where ranks come from:
//
//   - started by the coordinator on its own host (Options.Ranks),
//   - by a launcher that the coordinator starts (Options.Launch), such as
//     "srun -n 64",
//   - started by the other processes of the MPI job that the coordinator belongs
//     to (Options.Agents): see [Join].
//
// # Protocol
//
// Text over TCP, one line each. A rank says "hello SECRET RANK SIZE HOST BOOT
// PID". It answers each command with "ready" once it has prepared everything that
// is not to be timed. The coordinator starts all ranks together with "go", and each
// answers "done" with its measurements, as NAME=NUMBER; begin and end are among
// them. Instead of "ready" or "done" a rank may say "failed TEXT". "quit", or the end
// of the connection, ends the rank. Times are nanoseconds of CLOCK_MONOTONIC, which
// is the same in all processes that share a BOOT id.
//
// A Group is used by one goroutine at a time.
package workers

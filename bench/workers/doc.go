// Package workers starts the worker processes of a benchmark, its ranks, sends commands
// to them, and collects the durations. It does not use MPI. A rank is any process that
// connects to the coordinator, the process that has the [Group], and executes its
// commands. rank/ is a rank program in C that works like an application; [Serve] is for
// ranks in Go.
//
// Ranks are started in one of these ways:
//
//   - by the coordinator on its own host (Options.Ranks),
//   - by a launcher that the coordinator starts (Options.Launch), such as
//     "srun -n 64",
//   - by the other processes of the MPI job to which the coordinator belongs
//     (Options.Agents): see [Join].
//
// # Protocol
//
// The protocol is text over TCP, with one message in each line. A rank first says
// "hello SECRET RANK SIZE HOST BOOT PID". After a command it says "ready" when it has
// prepared everything that is not to be timed. The coordinator starts all ranks
// together with "go". Each rank then says "done" with its measurements as NAME=NUMBER,
// including begin and end. Instead of "ready" or "done" a rank may say "failed TEXT".
// "quit", or the end of the connection, ends the rank. Times are nanoseconds of
// CLOCK_MONOTONIC, which is the same in all processes with the same BOOT id.
//
// A Group is not safe for concurrent use.
package workers

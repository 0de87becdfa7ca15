// Package bench has the experiments of `nvmecr bench`. Each measures this project
// and other file systems, its peers, on the machine or cluster that it runs on,
// and returns a [result.Result].
//
// Separate processes do the work ([workers]): ranks under the preload library, like
// any application; raw ranks, each with one NVMe/TCP queue of our initiator; and the
// two ends of the sockets baseline, which sends the payload over plain TCP. The
// figures of different runs, or of different machines, cannot be compared. So all
// sides of a comparison run within one experiment, in rounds: warm-up rounds, which
// do not count, then rounds in which the sides take turns in a changing order.
//
// [Env] decides from the machine and the command line how much the experiments do.
// An Env runs one experiment at a time.
package bench

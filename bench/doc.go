// Package bench implements the experiments of `nvmecr bench`. Each experiment measures
// nvmecr and other file systems, its peers, on the machine or cluster that it runs on,
// and returns a [result.Result].
//
// Separate processes do the work ([workers]). Ranks under the preload library work like
// any application. Raw ranks have one NVMe/TCP queue of nvmecr's initiator each. The
// sockets baseline has two ends, and sends the payload over plain TCP.
//
// Figures of different runs or different machines cannot be compared. So all sides of a
// comparison run within one experiment. Warm-up rounds, which do not count, come first.
// In the following rounds the sides take turns, in a changing order.
//
// [Env] derives the amount of work from the machine and the command line. An Env runs
// one experiment at a time.
package bench

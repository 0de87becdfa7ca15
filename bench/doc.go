// Package bench is the experiments of `nvmecr bench`: each measures this
// project beside its peers on the machine, or cluster, that it runs on, and
// yields a [result.Result].
//
// The work is done by processes of their own ([crew]): ranks under the preload,
// as any application would be; raw ranks, one NVMe/TCP queue of our initiator
// each; and the ends of bare sockets. What is compared is done in turns, side
// by side in time, in an order that changes from round to round, and after
// rounds that do not count: absolute figures of different runs, let alone
// machines, do not compare.
//
// How much is done is decided in [Env], from the machine and the command line,
// and not by the experiments. An Env runs one experiment at a time.
package bench

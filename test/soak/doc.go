// Command soak lets ranks write checkpoints through the preloaded library
// while it kills, freezes and cuts off everything they stand on, at random,
// and in the end accounts for every byte that was acknowledged.
//
//	make soak MINUTES=5
//
// # The application
//
// testdata/rank.c is one rank. Its actors, each a thread with a directory of
// its own under the mount, make checkpoints and change files at random. Before
// and after each operation an actor writes a line into its journal, a plain
// file outside the mount: what was acknowledged is known, whenever the rank is
// killed, and of each actor at most one operation is in doubt. A rank that is
// started again first copies everything it finds under the mount to a
// directory outside.
//
// # The judge
//
// A [model] is the state of an actor's directory that its journal tells. It
// foretells the result of every operation: errno, counts, offsets, the bytes
// of reads. Where a rank was started again, the copy it made must equal the
// model, with the operation in doubt or without it; from there on that is
// settled. After each round the same is done with what `nvmecr cp` finds from
// outside. No byte is without a witness: it is a function of actor, operation
// and offset (pattern.go), so that a wrong one tells where it comes from.
//
// # The chaos
//
// A [field] is a store and what can be done to it: chaos.go lists that. One
// field is served by `nvmecr target` through a [relay], which cuts and stalls
// connections; it is killed and started again on its port. On the other field
// `nvmecr run` has its embedded target. Rounds alternate between fields and
// launchers: OpenMPI, MPICH, and a shell script that starts killed ranks
// again. Ranks keep their partitions from round to round.
package main

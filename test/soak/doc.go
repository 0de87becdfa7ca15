// Command soak is a crash and fault test at random. Ranks write checkpoints through
// the preload library while soak kills, freezes and disconnects ranks, launchers and
// targets. In the end it checks every byte that was acknowledged.
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
// # The checker
//
// A [model] is the state of an actor's directory after the operations in its journal.
// It predicts the result of every operation: errno, counts, offsets, the bytes of
// reads. When a rank is started again, its copy must equal the model, with or without
// the operation in doubt, which is then decided. After each round the checker does the
// same with the files that `nvmecr cp` copies from outside. Every byte is a function of
// actor, operation and offset (pattern.go), so a wrong byte shows where it comes from.
//
// # Faults
//
// A [testbed] is a store with its target; chaos.go lists the faults it can have. One
// testbed is served by `nvmecr target` through a [relay], which cuts and stalls
// connections; it is killed and started again on its port. On the other testbed
// `nvmecr run` has its embedded target. Rounds alternate between testbeds and
// launchers: OpenMPI, MPICH, and a shell script that starts killed ranks
// again. Ranks keep their partitions from round to round.
//
// # Mirrors
//
// With -mirrors the testbed has two targets that mirror one another (--copies-sync). In each round all faults are done to one of
// them, which comes back empty, too, in the middle of a job, of a copy, of a start. No call may fail for that, and no acknowledged byte may be lost. Between rounds
// a run copies what that target lacks, and `nvmecr checkpoints` must say that all is on two targets: then either one may be struck.
//
// # Copies
//
// With -copies stores have copies in the background, whole ones or shards, on two to four targets (copies.go). A job writes checkpoints (testdata/checkpoints.sh). Targets are killed or
// stopped while it starts, writes, copies or rests: as many as a protected checkpoint survives, or one more. Then the job reads, writes, ends or is killed. The targets come back,
// most of them empty, and what restores is killed, or loses another target. Whatever `nvmecr checkpoints` has listed is a promise (promises.go): so many more targets may be lost.
// Later listings must say no less, and all that is listed as complete must have its bytes: in the running job, and after `nvmecr rebuild`. Then the newest is protected again.
//
// # One tree
//
// With -tree all ranks have one tree (--view=job), and each actor is played by one rank after the other, whichever has its journal locked: a
// rank changes what others have made, and reads what they have written. A rank that takes an actor over from one that was killed
// reads its directory back first. How many ranks a job has differs. Each write is synced: of others it is not promised that they
// replace what was there. The process that has the index is killed, too, and the
// next round begins behind a look at all files by a job without ranks.
//
// Besides, all ranks write to files in common (testdata/shared.h): one by cells, which are cut off and punched, too, and a log to which all append; shells
// append to another one. A rank that reads a cell checks it; shared.go checks copies.
package main

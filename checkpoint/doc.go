// Package checkpoint finds checkpoints among the files of a job. A checkpoint is a set
// of files, over all ranks of a job, whose names have the same number in them. The
// package lists the sets, and says which are complete, and which complete one is the
// newest.
//
// The package does no I/O. The caller lists the files of all ranks ([File]) and
// [Find] returns the [Series] of checkpoints among them: the sets whose names
// differ in the number only. Functions may be called from any goroutine; they
// keep nothing.
//
// # Patterns
//
// A pattern says which files belong to a series, and which part of their paths
// tells one set from the next. It is a path from the root of a rank's files,
// with or without the slash in front:
//
//	{step}   a number, all of its digits: melt.{step}.*, ckpt-{step}/**
//	{name}   any text but a slash: {name}.cpt, {name}/model.pt
//	*        any text but a slash, or nothing
//	**       any text, or nothing
//	?        any character but a slash
//
// It has either {step} or {name}, once. The newest set is the one that was written
// last ([Set.Written]). After a step back in a job that is not the one with the
// greatest number. If a set with {step} has a time in the future, a clock is wrong,
// and the newest set is that with the greatest number. The name of a directory may
// be a number with decimals, as the times of OpenFOAM are (processor*/{step}/**).
//
// # Without a pattern
//
// Then the number is found in each path as follows. These numbers are ignored: numbers
// that a letter follows (2d), the digit of an extension (.h5), k and n of
// k-of-n, numbers behind words for parts of a job or of a file (rank, part,
// layer and such), and those that are the number of the rank in all files of
// such names (if only one rank has such files, the number counts only if there is no other one), or one more than it, where programs count
// ranks from 1 and several have such files. The step is the first of these that the path has:
//
//  1. a number behind step, iter, iteration or cycle: step-400, iter_0000100;
//  2. a number behind ckpt, checkpoint, chk, restart and such, or epoch;
//  3. a directory whose whole name is a number: 400/rank3.pt;
//  4. a number with no letter before it, in the last part of the path that has one: melt.400.0;
//  5. the longest number in the last part of the path that has one: plt00400.
//
// Files without such a number belong to no set. Files are of one series if what
// is before the number is the same, except for ignored numbers.
// [Choose] takes the only series, or the only one whose number is behind a word
// of 1 or 2; it does not guess among several.
//
// # Complete
//
// A file counts when its last writer has closed it: then it is durable. A set
// is complete when all its files count, and nothing is missing. Missing files can
// be recognised only by comparison with other sets, since applications do not
// announce their files. A set must have
//
//   - a file of every rank of the job. If one rank only has files of the
//     series, at any step, as where rank 0 writes for all, then that rank is
//     enough, unless its own number is in the names, as in LAMMPS' melt.400.0:
//     a rank that died before its first checkpoint has left no other trace.
//     In one tree that may be another rank in each set, as before and after a restart.
//     Where some ranks write for others, [Job.Writers] says which;
//   - what most other sets have, those with unclosed files or without a rank left out: the same rank, and
//     the same path but for the number. The first set of a series is compared
//     with nothing, so that a file is missed only from the second on;
//   - all n files where names say k-of-n;
//   - .metadata in a directory with files *.distcp, which torch.distributed.checkpoint
//     writes when it has written all of them.
//
// If a set was interrupted, and was being written again when the job was killed
// again, it may consist of closed files of both attempts. Names do not show that.
package checkpoint

// Package demo is the demonstration: a real application that nobody here
// wrote is killed in the middle of its work, with the target it stores its
// checkpoints on, and goes on from its newest complete checkpoint to the same
// result as if nothing had happened.
//
// The pieces are of use to other end-to-end tests: a [Stage] runs jobs in
// directories of its own, kills them without mercy, and leaves nothing behind;
// [Survey] says from outside which checkpoints a store holds. A Stage is not
// safe for concurrent use; any number of stages are.
package demo

package model

import "time"

// IndexCosts are what the index of a job's tree takes, measured on one machine. It answers one request after another.
type IndexCosts struct {
	// Trip is an empty round trip. Open is an open and a close for reading, Create an open that makes a file and its close,
	// Publish what a close takes longer that tells of what was written, Hello an introduction and a farewell: of the index
	// alone, when several ask.
	Trip, Open, Create, Publish, Hello time.Duration
	// Look is for each partition when the index starts, MountName for each name.
	Look, MountName time.Duration
	// Name is the memory of a file with a range, in bytes.
	Name float64
}

// hellos are how often a rank introduces itself when it starts: without a partition, and with its own.
const hellos = 2

// IndexShare is the part of a checkpoint's time that the index may add, by which the number of indexes is chosen.
const IndexShare = 0.1

// A TreePrediction is what one tree costs a job.
type TreePrediction struct {
	Ranks int
	// Open is until the last rank has opened a file for reading and closed it, if all do so at once; Create the same for
	// a file that each makes, writes and closes, without the writing; Restart until each has read.
	Open, Create, Restart time.Duration
	Memory                float64 // of the index, for the files given
	// Indexes is how many processes would have to share the names for Create to take no more than IndexShare of a checkpoint.
	Indexes int
}

// Tree computes what one tree costs the job that o is about, whose ranks have so many files each: with the one index that there is.
func (o Prediction) Tree(c IndexCosts, files int) TreePrediction {
	n, names := time.Duration(o.Ranks), float64(o.Ranks)*float64(files)
	t := TreePrediction{Ranks: o.Ranks, Memory: names * c.Name}
	t.Open = 2*c.Trip + n*c.Open
	t.Create = 2*c.Trip + n*(c.Create+c.Publish)
	t.Restart = time.Duration(names*float64(c.MountName)) + n*c.Look + o.Restart + n*(hellos*c.Hello+c.Open)
	t.Indexes = 1
	if most := time.Duration(IndexShare * float64(o.Checkpoint)); most > 0 {
		t.Indexes = max(1, int((t.Create+most-1)/most))
	}
	return t
}

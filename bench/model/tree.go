package model

import "time"

// IndexCosts are the costs of the index of a job's tree, measured on one machine. The index answers
// one request after another.
type IndexCosts struct {
	// Trip is an empty round trip. Open is an open and a close for reading. Create is
	// an open that creates a file, and its close. Publish is the additional time of a
	// close that publishes written ranges. Hello is a connection to the index and its
	// end. All are times of the index alone, while several clients send requests.
	Trip, Open, Create, Publish, Hello time.Duration
	// Look is the time for each partition when the index starts, and MountName the time
	// for each name.
	Look, MountName time.Duration
	// Name is the memory of a file with a range, in bytes.
	Name float64
}

// hellos is the number of times that a rank connects to the index at its start: once
// without a partition, and once with its own.
const hellos = 2

// IndexShare is the part by which the index may lengthen a checkpoint. It determines
// the number of indexes.
const IndexShare = 0.1

// A TreePrediction has the costs of one tree for a job.
type TreePrediction struct {
	Ranks int
	// Open is the time until the last rank has opened a file for reading and closed it, if all do
	// so at once. Create is the same for a file that each rank makes, writes and closes, without
	// the writing. Restart is the time until each rank has read.
	Open, Create, Restart time.Duration
	Memory                float64 // of the index, for the files given
	// Indexes is the number of processes that would have to share the names so that Create takes at
	// most IndexShare of a checkpoint.
	Indexes int
}

// Tree computes the costs of one tree for the job of o, with the one index that exists
// today. files is the number of files of each rank.
func (o Prediction) Tree(c IndexCosts, files int) TreePrediction {
	n, names := time.Duration(o.Ranks), float64(o.Ranks)*float64(files)
	t := TreePrediction{Ranks: o.Ranks, Memory: names * c.Name}
	t.Open = 2*c.Trip + n*c.Open
	t.Create = 2*c.Trip + n*(c.Create+c.Publish)
	t.Restart = time.Duration(names*float64(c.MountName)) + n*c.Look + o.Restart + n*(hellos*c.Hello+c.Open)
	t.Indexes = 1
	if limit := time.Duration(IndexShare * float64(o.Checkpoint)); limit > 0 {
		t.Indexes = max(1, int((t.Create+limit-1)/limit))
	}
	return t
}

// Package store opens a rank's partition: it goes from a configuration and a
// place (rank and size) to a mounted microfs.
//
// On the way it picks the namespace (balancer), connects to it (nvmf/dial),
// reads and checks the partition table (internal/parttable), formats where
// there is nothing yet, and, for a writer, becomes the owner of the partition
// among the processes of this host (internal/owner).
//
// # Who formats
//
// The lowest rank of a namespace formats it: it puts the formatting mark at
// its head, zeroes the superblocks of all partitions, flushes, and writes the
// partition table. The other ranks hear of it by Options.Formatted, or poll for the table
// until their time-out.
// Then each rank formats its own partition, which it recognises by superblocks
// that are all zeros. On a device that only this process can see
// (Identity.Private) every process formats for itself.
//
// # The solo partition
//
// A process that no launcher started, a job script above all, and the only rank of a job
// write the solo partition (Place.Alone). In a blank store it is all of the store: the one
// partition of a job of one rank. When the ranks of a larger job come, it is made shorter,
// and they get partitions behind it (divide.go). Its owner does that: a living process of
// this host if it is asked, else the rank that formats. Where ranks come first they leave
// a small part for it. It is on the first target.
//
// # Who may write
//
// A writer first reserves the namespace for its run (run.go, fence.go), so that
// no process of an earlier run can write any more; then it looks whether the
// last process that wrote the partition has unmounted it or is known to be dead
// (holder.go). Reset, Release and Repair do the same before they write.
//
// # Who has the store
//
// `nvmecr run` holds a Lease while its job lives: a run record on each target that it
// renews (take.go, renew.go). Other runs, on any host, look at the records before they
// begin (lease.go). The lease is for people, who start a job twice by mistake; what
// keeps a run from writing is the reservation.
//
// # Concurrency
//
// Open and the outside readers' functions may be called from any goroutine. A
// Partition is safe for concurrent use as far as microfs.FS is; Close it once.
//
// # The state directory
//
// A StateDir is what a host keeps of a store outside the namespaces: the
// settings of the last run, the lock of the run in progress, and the backing
// file of the embedded target.
package store

// Package store opens a rank's partition: from a configuration and the rank of a process it gets to a mounted microfs.
//
// It chooses the namespace (balancer), connects to it (nvmf/dial), reads and checks the partition table
// (internal/parttable), and formats an unformatted namespace. A writer becomes the owner of the partition among the
// processes of this host (internal/owner).
//
// # Who formats
//
// The lowest rank of a namespace formats it: it writes the formatting mark at the head, zeroes the superblocks of all
// partitions, flushes, and writes the partition table. The other ranks learn of the table by Options.Formatted, or poll
// for it until their time-out. Then each rank formats its own partition if its superblocks are zeros. On a device that
// only this process can use (Identity.Private) every process formats for itself.
//
// # The singleton partition
//
// Singletons (Proc.Singleton) write the singleton partition: processes that no launcher started, such as job scripts,
// and the only rank of a job. It is on the first target. In a blank store it is the whole store: the one partition of a
// job of one rank. When the ranks of a larger job come, it is made shorter, and the ranks get partitions behind it
// (divide.go). Its owner does that: a living process of this host if a rank asks it, else the rank that formats. If
// ranks come first they leave a small part of the namespace for it.
//
// # Who may write
//
// A writer first reserves the namespace for its run (run.go, fence.go), so that no process of an earlier run can write
// any more. Then it checks that the last process that wrote the partition has unmounted it or is known to be dead
// (holder.go). Reset, Release and Repair do the same before they write.
//
// # Who has the store
//
// `nvmecr run` holds a Lease while its job lives: a run record on each target, which the run renews (take.go,
// renew.go). Other runs, on any host, read the records before they begin (lease.go). The lease protects users from
// starting a job twice by mistake; the reservation is what keeps a run from writing.
//
// # Concurrency
//
// Open and the functions for readers outside of the job may be called from any goroutine. A Partition is as safe for
// concurrent use as microfs.FS. Close it once.
//
// # The state directory
//
// A StateDir is what a host stores outside of the namespaces: the settings of the last run, the lock of the run in
// progress, and the backing file of the embedded target.
package store

// Package slurm gives jobs of Slurm space for checkpoints. Each of Slurm's hooks is a method of Hooks, which `nvmecr
// slurm HOOK` calls:
//
//	PrologSlurmctld   PrologController  plans, creates and exposes the namespaces     on the controller
//	Prolog            Prolog            gives the job's user the manifest             on each node, as root
//	TaskProlog        TaskProlog        prints the job's variables                    on each node, as the user
//	Epilog            Epilog            removes the manifest                          on each node, as root
//	EpilogSlurmctld   EpilogController  records the time at which the job ended       on the controller
//	cron, or a timer  Reconcile         frees what is no longer needed                on the controller
//
// # Leases
//
// A lease records the namespaces of a job. It is a file of the state directory (store.go), written before the first
// namespace is created, and removed after the last one is deleted. So every namespace of a job is in a lease, wherever
// a hook was killed. The next PrologController of the job, or Reconcile, continues from there. All hooks can be
// repeated.
//
// EpilogSlurmctld does not tell whether the job will run again: when a node is lost, Slurm calls the hook at once and
// starts the job anew. So the hook frees nothing. Reconcile asks Slurm for its jobs, and frees a lease when its job is
// over and the retain time has passed.
//
// # Fencing
//
// Each start of a job has its own key. The new key replaces the previous one at the targets, which cuts off the hosts
// that have the previous key: a node that was lost and comes back reaches no namespace.
//
// # Concurrency
//
// Methods may be called at the same time by several processes. Each holds the lock of the lease that it changes, and
// the lock of the state directory only while it plans; the lock of a lease comes first. So a target that does not
// answer delays only the jobs that have space on it.
package slurm

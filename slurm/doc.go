// Package slurm gives jobs of Slurm checkpoint space for as long as they need it. Each of Slurm's hooks is a method of Hooks, and
// `nvmecr slurm HOOK` calls it:
//
//	PrologSlurmctld   PrologController  plans, makes the namespaces, exposes them     on the controller
//	Prolog            Prolog            gives the job's user the manifest             on each node, as root
//	TaskProlog        TaskProlog        prints the job's variables                    on each node, as the user
//	Epilog            Epilog            takes the manifest away                       on each node, as root
//	EpilogSlurmctld   EpilogController  notes that the job has ended, and when        on the controller
//	cron, or a timer  Reconcile         frees what is no longer needed                on the controller
//
// # Leases
//
// What a job holds is a lease, a file of the state directory (store.go). A lease is written before the first namespace is made, and
// removed after the last one is deleted. So whatever a target holds for a job a lease has it, wherever a hook was killed; the
// next PrologController of the job, or Reconcile, goes on from there. All of them can be repeated.
//
// EpilogSlurmctld says nothing about whether the job comes again: with a node lost, Slurm calls it at once and starts the job anew.
// So it frees nothing. Reconcile asks Slurm which jobs there are, and frees a lease when its job is over and the time for which
// it is retained has passed.
//
// # Fencing
//
// Each start of a job has a key of its own. The targets are told it in the place of that of the last start, which cuts
// off the hosts that have the last one: a node that was lost and comes back reaches nothing.
//
// Methods may be called at the same time by several processes: each holds the lock of the lease that it
// changes, and that of the state directory only while it plans. So a target that hangs delays the jobs that have space on it, and no others.
package slurm

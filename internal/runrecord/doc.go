// Package runrecord reads and writes the run record of a namespace, the heartbeat of a
// lease: which run has the store, on which host, and whether the run is in progress. The
// run renews the record every few seconds. So another host sees that the run is alive, or
// that the record does not change any more.
//
// # Layout, version 1
//
// All integers are little endian, all offsets in bytes. The record lies twice
// in the head of the namespace, at the end of each slot of the partition table
// (parttable.RunRecordOffset), 4096 bytes each:
//
//	   0  16  magic "NVMECR-RUNRECORD"
//	  16   4  version, 1
//	  20   4  copy, 0 or 1
//	  24   8  incompatible features: unknown bits refuse the record
//	  32   8  compatible features: unknown bits do not matter
//	  40  16  id of the run: grows from run to run
//	  56   8  beat: grows with each renewal
//	  64   8  interval between renewals, ns
//	  72   8  start of the run, ns since 1970 UTC
//	  80   8  time of this write, ns since 1970 UTC
//	  88   4  state: 1 in progress, 2 ended
//	  92   4  user id
//	  96  16  machine id of the host, zeros if not known
//	 112  16  boot id of the host, zeros if not known
//	 128   8  inode of the PID namespace
//	 136   8  start of the process, in clock ticks since boot
//	 144   4  process id
//	 148   4  length of the host's name
//	 152  64  host name, padded with zeros
//	 216   4  length of the store's name
//	 220  64  name of the store, padded with zeros
//	 284 740  0
//	1024   4  length of the job's id; 0: no other run may join this one
//	1028  64  id of the job, padded with zeros
//	1092   4  1: other runs of the job may join now
//	1096   4  length of the addresses of the index of the job's tree
//	1100 256  these, "IP:PORT" joined by commas, padded with zeros
//	1356  32  secret of the run, zeros if there are no addresses
//	1388   4  1: the job has one tree for all ranks
//	1392   8  since when a mirrored store has gone on without a target, ns since 1970 UTC; 0: it has all
//	1400      zeros
//	4088   8  CRC-64/NVME of bytes 0 to 4088
//
// The version is checked before the checksum. Bytes without the magic are no record.
//
// # Order of writes
//
// Renewals go to the copies in turn, so that a write that is cut short costs
// the newest beat only. Of two valid copies the newer is that of the later run,
// and of one run that with the higher beat. A run that begins, and one that
// ends, writes both.
//
// # Concurrency
//
// A reader may meet a write in progress: then a copy is damaged for a moment.
// The functions use the caller's queue.
package runrecord

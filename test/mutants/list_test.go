package mutants

import "slices"

// edits are all faults that are edits of the source. This file has those of packages without a file of their own.
var edits = slices.Concat(editsOfMicrofs, editsOfNVMf, editsOfTrees, editsOfDrain, editsOfMirror, []edit{
	// Space for jobs of Slurm.
	{"slurm: a lease is written when its namespaces are there", "slurm/hooks.go",
		`return l, h.store().save(l)`, `return l, nil`,
		"TestKilledAnywhere", ""},
	{"drain: what is left of a set counts only where its own pattern finds it", "drain/levels.go",
		`case g == nil || g.Lost || !g.Closed:`, `case g == nil || g.Lost || !g.Closed || g.of != of:`,
		"TestMergeElsewhere", ""},
	{"drain: what is copied back may take the place of what is newer, by another pattern", "drain/levels.go",
		`if g.of != of {`, `if false {`,
		"TestMergeElsewhere", ""},
	{"drain: checkpoints of one rank are none of the series of more", "drain/levels.go",
		`stem := checkpoint.Stem(pattern)`, `stem := pattern`,
		"TestMergeStem", ""},
	{"drain: what a checkpoint was is what a rebuild brings back", "drain/levels.go",
		`other != c && other.Name == c.Name`, `false`,
		"TestMergeStem", ""},
	{"nvmecr: what is left of copies is kept in place of whole ones", "cmd/nvmecr/command/copies.go",
		`case set.Protected():`, `default:`,
		"TestRetain", ""},
	{"drain: copies of which nobody can read the manifest stay", "drain/archive.go",
		` || errors.As(d.Err, `, ` || false && errors.As(d.Err, `,
		"TestCopiesDamagedManifest", ""},
	{"drain: copies that a later version can read are removed", "drain/archive.go",
		` && !errors.Is(d.Err, errLater)`, ``,
		"TestUseless", ""},
	{"store: copies beside an unformatted target are none", "internal/store/outside.go",
		`if !errors.Is(missing, ErrOnlyCopies) {`, `if true {`,
		"TestOnlyCopies", ""},
	{"drain: a part that another pattern finds keeps its old one", "drain/copies.go",
		`	s.Pattern, s.Name = want.Pattern, want.Name // the existing part may have been found by another pattern
`, ``,
		"TestCopiesOtherPattern", ""},
	{"slurm: the targets of a job with copies are all of one node", "slurm/domains.go",
		`on[node] < perNode`, `on[node] < perNode+len(targets)`,
		"TestCopiesApart", ""},
	{"slurm: what is freed has no lease while it goes", "slurm/reconcile.go",
		`for _, name := range l.on() {`, `_ = h.store().remove(l.Name); for _, name := range l.on() {`,
		"TestKilledAnywhere", ""},
	{"slurm: a lost node's key lets it in again", "slurm/hooks.go",
		`job.Nodes, r, h.Now(), nil
	l.Key = dhchap.NewSecret(dhchap.SHA256).Reveal()`, `job.Nodes, r, h.Now(), nil`,
		"TestLife", ""},
	{"slurm: the end of a job is the end of its space", "slurm/reconcile.go",
		`if err == nil && !job.Over {`, `if err == nil && !job.Over && l.Ended == nil {`,
		"TestLife", ""},

	{"slurm: what is freed is given up by its lease, and not deleted", "slurm/reconcile.go",
		`if err != nil && !h.failed(name) {`, `if err != nil && h.step != nil {`,
		"TestTargetReplaced", ""},
	{"slurm: what a target has made that failed then is forgotten", "slurm/lease.go",
		`slices.Clone(l.Abandoned)`, `slices.Clone(l.Abandoned[:0])`,
		"TestElsewhere", ""},
	{"slurm: a job is over when another one of its array is", "slurm/queue.go",
		`values[0] != strconv.FormatUint(uint64(id), 10)`, `false`,
		"TestParseJob", ""},
	{"slurm: a task that is held takes all of its array along", "slurm/queue.go",
		`if fields["ArrayTaskID"] != "" {`, `if fields["ArrayTaskID"] == "none" {`,
		"TestParseJob", ""},
	{"slurm: a name is taken from the job that has it", "slurm/hooks.go",
		`case err == nil && !holder.Over:`, `case holder.Over && false:`,
		"TestNamed", ""},
	{"slurm: the targets of a new start keep the last key", "slurm/hooks.go",
		`if err := h.Targets.Expose(ctx, on, l.Name, l.HostNQN, l.Key); err != nil {`, `if l.Reused {
			continue
		}
		if err := h.Targets.Expose(ctx, on, l.Name, l.HostNQN, l.Key); err != nil {`,
		"TestLife", ""},
	{"slurm: the keys of a job stay on its nodes", "slurm/manifest.go",
		`return os.RemoveAll(manifestOf(id, runtime))`, `return nil`,
		"TestManifest", ""},
	{"slurm: a target that has failed is kept", "slurm/hooks.go",
		`if h.failed(spot.Target) {`, `if h.failed(spot.Target) && false {`,
		"TestTargetReplaced", ""},
	{"slurm: the plan knows nothing of switches", "slurm/hooks.go",
		`placement.New(want, h.Network, &inventory)`, `placement.New(want, new(topology.Topology), &inventory)`,
		"TestPlanned", ""},

	// The partition table.
	{"parttable: the header's checksum is not looked at", "internal/parttable/codec.go",
		`case le.Uint64(b[offHeaderCRC:]) != crc64.Checksum(b[:offHeaderCRC]):`, `case false:`,
		"TestDecodeNoticesEveryByte", ""},
	{"parttable: the entries' checksum is not looked at", "internal/parttable/codec.go",
		`if le.Uint64(header[offEntriesCRC:]) != crc64.Checksum(b) {`, `if false {`,
		"TestDecodeNoticesEveryByte", ""},
	{"parttable: partitions overlap", "internal/parttable/table.go",
		`e.Start < end || `, `e.Start < HeadSize || end == 0 || `,
		"TestDecodeRefuses", ""},
	{"parttable: another user's store", "internal/parttable/table.go",
		`case t.UID != w.UID && !w.AnyUser:`, `case false:`,
		"TestCheck", ""},
	{"parttable: both copies at once", "internal/parttable/media.go",
		`		if err := m.flush(); err != nil {
			return err
		}
	}
	return nil`, `	}
	return m.flush()`,
		"TestCrash", ""},
	{"parttable: the newest copy goes first", "internal/parttable/media.go",
		`first = 1 - c.newest`, `first = c.newest`,
		"TestCrash", ""},

	// Stores.
	{"store: no fence", "internal/store/fence.go",
		`if !ok || cfg.Run == uuid.Nil {`, `if true || !ok {`,
		"TestFence", ""},
	{"store: a process id is enough", "internal/store/holder.go",
		`errors.Is(err, errEnded) || err == nil && start != h.Start`, `errors.Is(err, errEnded) || start == 1`,
		"TestEnded", ""},
	{"store: the holder's host does not matter", "internal/store/holder.go",
		` && h.Host != "" && h.Host == me.Host &&`, ` &&`,
		"TestEnded", ""},
	{"store: a living holder is overrun", "internal/store/fence.go",
		`case o.cfg.Unfenced:`, `case true:`,
		"TestMayTakeOver", ""},
	{"store: released while somebody writes", "internal/store/fence.go",
		`if (known || sure) && !ended(last.Holder, me) && !cfg.Unfenced {`, `if known && false && ended(last.Holder, me) {`,
		"TestReleaseHeld", ""},
	{"store: a renewed run record is not noticed", "internal/store/lease.go",
		`before != nil && !now.Same(before):`, `before != nil && false:`,
		"TestIdle|TestLeaseOfSeveral", ""},
	{"store: a run of this host that lives is not known", "internal/store/lease.go",
		`	case err == nil:
		return runAlive
`, ``,
		"TestIdle", ""},
	{"store: no last look at the run record", "internal/store/take.go",
		`case f.Record == nil || f.Record.Run != p.me.Run:`, `case f.Record == nil:`,
		"TestOverwritten", ""},
	{"store: processes of other hosts are looked for on this one", "internal/store/holder.go",
		`h.Boot == me.Boot && h.PIDSpace == me.PIDSpace:`, `true:`,
		"TestStateDirLock", ""},
	{"store: a clock that is ahead keeps others out", "internal/store/take.go",
		`if reservationKey(r.Run) >= reservationKey(cfg.Run) {`, `if false {`,
		"TestClockAhead", ""},
	{"store: who has lost the store goes on renewing", "internal/store/renew.go",
		`case r != nil && r.Run != p.me.Run:`, `case false:`,
		"TestTakeover", ""},
	{"store: a run that has ended does not say so", "internal/store/renew.go",
		`p.me.Ended = true`, ``,
		"TestLease", ""},
	{"store: formatting wipes the run record", "internal/parttable/media.go",
		`{headerSize, RunRecordOffset(0) - headerSize}, {slotSize, RunRecordOffset(1) - slotSize}`, `{headerSize, slotSize - headerSize}, {slotSize, slotSize}`,
		"TestLease", "internal/store"},
	{"runrecord: the checksum is not looked at", "internal/runrecord/record.go",
		`case le.Uint64(b[offCRC:]) != crc64.Checksum(b[:offCRC]):`, `case false:`,
		"TestDecodeRefuses", ""},
	{"balancer: slots begin anew with each round of a plan", "balancer/plan.go",
		`Slot: round*m.loads[d.Target] + d.Slot`, `Slot: round + d.Slot`,
		"TestPlans", ""},
	{"store: a rank gets a second partition", "internal/store/mapping.go",
		`case err == nil && differ < 0:`, `case true:`,
		"TestMappings|TestUnfinishedMapping", ""},
	{"store: a living script divides by a mapping of its own", "internal/store/divide.go",
		`balancer.ParsePlan(by)`, `o.cfg.Mapping, error(nil)`,
		"TestDivideByMapping", ""},
	{"store: who waits for a target hears of it too early", "internal/store/open.go",
		`if err == nil && atHome && o.opts.Formatted != nil`, `if atHome && o.opts.Formatted != nil`,
		"TestFormatted", ""},
	{"store: half is erased", "internal/store/erase.go",
		`err := zero(ctx, dev, e.Start, e.Length, func`, `err := zero(ctx, dev, e.Start, e.Length/2, func`,
		"TestErase", ""},
	{"store: what was erased is not flushed", "internal/store/erase.go",
		`if !id.VolatileWriteCache {`, `if true {`,
		"TestErase", ""},
	{"store: another user's state directory", "internal/store/statedir.go",
		`if int(st.Uid) != os.Geteuid() {`, `if false {`,
		"TestStateDirOfAnotherUser", ""},
	{"store: an image that was cut", "internal/store/statedir.go",
		`size < r.Size {`, `size == 0 {`,
		"TestCheckImage", ""},
	{"owner: another user's directory", "internal/owner/directory.go",
		`int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {`, `false {`,
		"TestForeignDirectory", ""},
	{"owner: a process owns a key twice", "internal/owner/lock.go",
		`busy := held[path]`, `busy := false`,
		"TestThisProcessHasItAlready", ""},
	{"owner: keys of other groups", "internal/owner/directory.go",
		`dir += "-" + group`, `dir += ""`,
		"TestGroups", ""},

	// Settings.
	{"config: a key that others can read", "internal/config/secrets.go",
		`case mode.Perm()&0o077 != 0:`, `case false:`,
		"TestSecretFilesThatAreRefused", ""},
	{"config: a key that another user can change", "internal/config/secrets.go",
		`case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():`, `case false:`,
		"TestSecretFilesThatAreRefused", ""},

	// What the application sees.
	{"posixshim: an error without errno is success", "posixshim/errno.go",
		`	return syscall.EIO
}

// Errno returns the errno of err.`, `	return 0
}

// Errno returns the errno of err.`,
		"TestErrno", ""},
	{"posixshim: a handle of a closed file is another's", "posixshim/table.go",
		`f != nil && f.handle == h {`, `f != nil {`,
		"TestHandleOfAClosedFileIsNeverAnother", ""},
	{"nvmf/target: one address takes all places", "nvmf/target/unauthenticated.go",
		`case byAddress[peer] >= each:`, `case byAddress[peer] >= each && false:`,
		"TestGuestsOfOneAddress", ""},
	{"posixshim: who reads media does not wait for what others have taken on", "posixshim/mount.go",
		`m.p.Await() // relayed data of other processes has to be in the files before they are read`, ``,
		"TestAwaitsOtherRelays", ""},
	{"owner: a process that relays is not waited for", "internal/owner/relay.go",
		`			c.await(file)`, ``,
		"TestRelays", ""},
	{"posixshim: two mounts are one", "posixshim/paths.go",
		`if err == nil && m != other {`, `if false && m != other {`,
		"TestNoNameLeadsIntoAnotherMount", ""},
	{"posixshim: files of two mounts are one inode", "posixshim/mounts.go",
		`return n.number<<mountShift | ino }`, `return ino }`,
		"TestMountsShareNoInodes", ""},
	{"posixshim: O_APPEND at an offset", "posixshim/data.go",
		`atEnd := f.flags.Load()&syscall.O_APPEND != 0`, `atEnd := false`,
		"TestAppendGoesToTheEnd", ""},
	{"posixshim: a read does not move the offset", "posixshim/data.go",
		`	n, err := p.readAt(f, bufs, f.offset)
	f.offset += int64(n)`, `	n, err := p.readAt(f, bufs, f.offset)`,
		"TestReadsMoveTheOffset", ""},
	{"posixshim: offsets before the start", "posixshim/data.go",
		`	case off < 0:
		return 0, syscall.EINVAL
	case f.isDir`, `	case f.isDir`,
		"TestSeek", ""},
	{"posixshim: the first close closes", "posixshim/files.go",
		`if f.refs.Add(-1) > 0 {`, `if f.refs.Add(-1) > 1<<20 {`,
		"TestOffsetIsSharedByDescriptorsOfOneFile", ""},
	{"posixshim: locks are not handed over", "posixshim/handover.go",
		`	e.collectLocks(executes)
`, ``,
		"TestHandOver", ""},
	{"posixshim: memory that others map is written by pages", "posixshim/changes.go",
		`in := differing(was, now, part{at, end}, 1)`, `in := differing(was, now, part{at, end}, page)`,
		"TestChangesOfSeveral|TestMappingKeepsWhatOthersWrote", ""},
	{"posixshim: what was saved is saved again", "posixshim/mapping.go",
		`copy(clean[c.start:], now[c.start:c.start+max(n, 0)])`, `_ = clean`,
		"TestMappingSavesOnce", ""},
	{"posixshim: a file of another view is mapped", "posixshim/view.go",
		`if err == nil && (st.Ino != uint64(attr.Ino)`, `if false && (st.Ino != uint64(attr.Ino)`,
		"TestMappedByCopy", ""},
	{"microfs: nameless files that somebody goes on with are dropped", "microfs/mount.go",
		`fs.tree.dropNameless(fs.opts.Keep...)`, `fs.tree.dropNameless()`,
		"TestKeepNameless", ""},
	{"oplog: a log that has gone round counts as an empty one", "oplog/recover.go",
		`if rv.skip > 0 {`, `if false {`,
		"TestChangedBetweenCandidates", ""},
	{"posixshim: an error of close is not said", "posixshim/files.go",
		`err = f.current().Close()`, `_ = f.current().Close()`,
		"TestCloseTellsItsError", ""},
	{"posixshim: fsync does nothing", "posixshim/files.go",
		`err = errors.Join(f.takeRelayErr(), f.current().Sync())`, `err = f.unwritten()`,
		"TestFsyncReachesTheFile", ""},
	{"posixshim: locks of two owners on one range", "posixshim/locks.go",
		`h.owner != l.owner && h.overlaps(l) && (h.write || l.write)`, `false && h.overlaps(l)`,
		"TestConflict", ""},

	// The singleton partition, and the division of a store.
	{"microfs: a partition that ends earlier keeps its free space", "microfs/shrink.go",
		`fs.pool.end(fs.g.usable)`, ``,
		"TestShrink", ""},
	{"microfs: a partition that ends earlier has no second superblock", "microfs/shrink.go",
		`if err := fs.restore(seg.superblocks()[1], sb); err != nil {`, `if err := error(nil); err != nil {`,
		"TestShrink", ""},
	{"microfs: a partition ends before open files without a name", "microfs/shrink.go",
		`end = max(end, x.phys+x.count)`, `end = max(end, (x.phys+x.count)*Hugeblock(min(in.nlink, 1)))`,
		"TestShrinkKeepsWhatIsInUse", ""},
	{"parttable: new partitions are not blank", "internal/parttable/media.go",
		`	for _, r := range blank {
		if err := m.zero(r); err != nil {
			return err
		}
	}
	if err := m.flush(); err != nil {
		return err
	}
	return Write`, `	return Write`,
		"TestDivideByOwner", "internal/store"},
	{"store: ranks format a store that a script has written to", "internal/store/divide.go",
		`if errors.Is(err, parttable.ErrNoTable) {
		return o.format(ctx, dev, t)
	}
	if err == nil {`, `if err == nil {
		return o.format(ctx, dev, t)
	}
	if err == nil {`,
		"TestSingletonFirst", ""},
	{"unionfs: files of ranks are opened for writing", "internal/unionfs/unionfs.go",
		`case !f.isDir() && !f.own() && changes(flags):`, `case false:`,
		"TestChange", ""},
	{"unionfs: a directory has the names of one", "internal/unionfs/file.go",
		`range stack[len(stack)-1].parts {`, `range stack[len(stack)-1].parts[:1] {`,
		"TestRead", ""},

	// The command.
	{"nvmecr: several hosts on a target of this one", "cmd/nvmecr/command/hosts.go",
		`if n > 1 {
				return cli.UsageError`, `if n > 2 {
				return cli.UsageError`,
		"TestCheckHosts", ""},
	{"nvmecr: a requeued job begins anew", "cmd/nvmecr/command/hosts.go",
		`err != nil || n == 0 {
		return nil
	}
	return fmt.Errorf("job %s was started again`, `err != nil || n >= 0 {
		return nil
	}
	return fmt.Errorf("job %s was started again`,
		"TestCheckRequeued", ""},
	{"nvmecr: the benchmark knows no variables", "cmd/nvmecr/command/bench.go",
		`args...), os.Environ())`, `args...), os.Environ()[:1])`,
		"TestBenchIsExecuted", ""},
	{"nvmecr: a killed job is a success", "cmd/nvmecr/command/job.go",
		`return 128 + int(ws.Signal()), nil`, `return 0, nil`,
		"TestJobStatus", ""},
	{"nvmecr: a static program runs without the library", "cmd/nvmecr/command/job.go",
		`if p.Type == elf.PT_INTERP {`, `if p.Type != elf.PT_NULL {`,
		"TestProgramsThatCannotBePreloaded", ""},
})

package mutants

// edits are the faults outside of the log and the file system, by package.
var edits = []edit{
	// The file system's superblock.
	{"microfs: superblock's checksum not looked at", "microfs/superblock.go",
		`if crc64.Checksum(b[:sbCRC]) != le.Uint64(b[sbCRC:]) {`, `if false {`,
		"TestSuperblockNoticesEveryByte", ""},
	{"microfs: superblock's unknown features taken", "microfs/superblock.go",
		`if f := le.Uint64(b[sbIncompat:]) &^ knownIncompat; f != 0 {`, `if f := le.Uint64(b[sbIncompat:]) &^ knownIncompat; false {`,
		"TestSuperblockFeatures", ""},

	// What is deallocated, and when.
	{"microfs: a lost deallocation may hit what is written next", "microfs/deallocate.go",
		`fs.retired.add(h, true)`, `fs.pool.putLast(run{h, 1})`,
		"TestDeallocateLost", ""},
	{"microfs: a claim given up with a deallocation in flight", "microfs/claim.go",
		`= true, fs.dealloc.late()`, `= true, false`,
		"TestDeallocateLost", ""},
	{"microfs: what a flush for space lost is not told", "microfs/deallocate.go",
		`fs.unflushable = err`, `_ = err`,
		"TestDeallocateFlushFails", ""},
	{"microfs: a device that refuses to deallocate is asked again", "microfs/deallocate.go",
		`		fs.logf("the device deallocates nothing, and is not asked again: %v", err)
		fs.pool.keepNothing()`, `		fs.logf("the device deallocates nothing, and is not asked again: %v", err)`,
		"TestDeallocateRefused", ""},
	{"microfs: a busy application loses what it is about to use", "microfs/deallocate.go",
		`fs.pool.spent() >= d.kept(&fs.pool)+batch`, `fs.pool.spent() > 0`,
		"TestDeallocateBusy", ""},
	{"microfs: used hugeblocks come last", "microfs/pool.go",
		`!p.freshFirst && p.used.first().count >= p.long`, `false`,
		"TestDeallocateUsedFirst", ""},
	{"store: a store that is given up keeps its space", "internal/store/deallocate.go",
		`if !dev.Identity().CanDeallocate {`, `if true {`,
		"TestGiveBack", ""},

	// Reading ahead, and the lock.
	{"microfs: what was read ahead is handed out after a change", "microfs/readahead.go",
		`if a.version != in.version || pos < a.start {`, `if pos < a.start {`,
		"TestReadAheadIsCurrent", ""},
	{"microfs: what was read ahead and is damaged is handed out", "microfs/readahead.go",
		`if err != nil {
		a.window = 0`, `if err != nil && false {
		a.window = 0`,
		"TestReadAheadOfDamage", ""},
	{"microfs: as many buffers as there are readers", "microfs/aheadpool.go",
		`case len(p.owners) < aheadBuffers:`, `case true:`,
		"TestReadAheadMemory", ""},
	{"microfs: buffers are kept that nobody reads from", "microfs/aheadpool.go",
		`if !f.ahead.used {`, `if false {`,
		"TestReadAheadMemory", ""},
	{"microfs: a large write keeps the lock to itself", "microfs/lock.go",
		`	l.mu.Unlock()
	l.queue()`, `	l.mu.Unlock()
	l.mu.Lock()`,
		"TestLargeGivesWay", ""},
	{"microfs: writes mix with a large one", "microfs/file.go",
		`if !f.in.long {`, `if true {`,
		"TestLargeWriteIsOne", ""},
	{"microfs: a file is closed in the middle of a write", "microfs/file.go",
		`for f.long > 0 {`, `for false {`,
		"TestLargeWriteIsOne", ""},

	// A device over a file.
	{"filedev: Flush does nothing", "nvmf/filedev/filedev.go",
		`err := unix.Fdatasync(int(d.file.Fd()))`, `err := error(nil)`,
		"TestReachesStorage", ""},
	{"filedev: FUA does nothing", "nvmf/filedev/filedev.go",
		`flags = unix.RWF_DSYNC`, `flags = 0`,
		"TestReachesStorage", ""},
	{"filedev: a reader writes", "nvmf/filedev/filedev.go",
		`if q.device.readOnly {`, `if false {`,
		"TestReadOnly", ""},
	{"filedev: memory given back is taken for there", "nvmf/filedev/mapped.go",
		`m.ready[i/64].And(^(uint64(1) << (i % 64)))`, ``,
		"TestSparseInMemory|TestConformance", ""},
	{"filedev: the end of a truncated file is no error", "nvmf/filedev/filedev.go",
		`case n == 0:
			return`, `case n == 0:
			return nil
			return`,
		"TestTruncatedFileIsAnErrorNotData", ""},
	{"filedev: a fault of the caller's memory is one of the file", "nvmf/filedev/mapped.go",
		`*err = unix.EFAULT`, `*err = unix.EIO`,
		"TestFaultsInMemory", ""},

	// The target.
	{"target: Flush of a file does nothing", "nvmf/target/filebacking.go",
		`err = unix.Fdatasync(int(b.f.Fd()))`, `err = nil`,
		"TestReachesStorage", ""},
	{"target: FUA of a file does nothing", "nvmf/target/filebacking.go",
		`err = unix.Msync(b.mapping[start:offset+length], unix.MS_SYNC)`, `_ = start`,
		"TestReachesStorage", ""},
	{"target: FUA of a write is not looked at", "nvmf/target/io.go",
		`		if sqe.FUA() {
			return c.statusOf(m, backing.Sync(m.offset, length))
		}
	case nvme.IOVerify:`, `	case nvme.IOVerify:`,
		"TestFUASyncsItsRange", ""},
	{"target: FUA of Write Zeroes is not looked at", "nvmf/target/io.go",
		`		if sqe.FUA() {
			return c.statusOf(m, backing.Sync(m.offset, length))
		}
	case nvme.IODSM:`, `	case nvme.IODSM:`,
		"TestFUASyncsItsRange", ""},
	{"target: Flush of all namespaces does nothing", "nvmf/target/io.go",
		`		if s := c.statusOf(m, a.backing.Sync(0, 0)); s != 0 {
			return s
		}
`, ``,
		"TestReachesStorage", ""},
	{"target: a range may end one block behind the end", "nvmf/target/io.go",
		`uint64(blocks) > uint64(id.Blocks)-slba`, `uint64(blocks) > uint64(id.Blocks)-slba+1`,
		"TestIOValidation", ""},
	{"target: transfers of any length", "nvmf/target/io.go",
		`if n > maxTransfer {`, `if false {`,
		"TestIOValidation", ""},
	{"target: reservations are not looked at", "nvmf/target/io.go",
		`g != nil && !g.permits(c.ctrl.host.ID, sqe.Opcode())`, `g != nil && false`,
		"TestReservationAccess", ""},
	{"target: a Flush of all passes a reservation", "nvmf/target/io.go",
		`if !a.fence.guard.Load().writes(c.ctrl.host.ID) {`, `if false {`,
		"TestReservationAccess", ""},
	{"target: Preempt and Abort does not wait", "nvmf/target/fence.go",
		`waits = m.status == 0 && f.asked > 0; waits {`, `waits = false; waits {`,
		"TestPreemptWaitsForExecution", ""},
	{"target: Preempt and Abort ends no write", "nvmf/target/fence.go",
		`abort, demands, g := a.abort, a.demands, a.fence.guard.Load()`, `abort, demands, g := false, a.demands, (*guard)(nil)`,
		"TestPreemptAbortsWrites", ""},
	{"target: a host without identifier reserves", "nvmf/target/fence.go",
		`case host == hostID{}: // which many hosts may have`, `case false:`,
		"TestReservationNonsense|TestReservationRules", ""},
	{"target: any host may connect", "nvmf/target/access.go",
		`return allowed(s.hosts, nqn) && (len(s.hosts) > 0 || !s.listed)`, `return true`,
		"TestAllowList|TestListedOnly", ""},
	{"target: an empty list admits everybody", "nvmf/target/access.go",
		`&& (len(s.hosts) > 0 || !s.listed)`, ``,
		"TestListedOnly", ""},
	{"target: a host without key passes where others have one", "nvmf/target/access.go",
		`if _, ok := s.keys[nqn]; !ok && len(s.keys) > 0 {`, `if _, ok := s.keys[nqn]; !ok && false {`,
		"TestHostWithoutKey", ""},
	{"target: commands before the proof", "nvmf/target/fabrics.go",
		`case c.barred:`, `case false:`,
		"TestBarred", ""},
	{"target: a queue joins another host's controller", "nvmf/target/fabrics.go",
		`ctrl.host != host || `, ``,
		"TestQueueOfAnotherHost", ""},
	{"target: TLS's host may say another name", "nvmf/target/fabrics.go",
		`if !c.tls.is(host.NQN, d.SubNQN()) {`, `if false {`,
		"TestTLSIsOneHost", ""},
	{"target: who has another key now stays", "nvmf/target/access.go",
		`keyed && !k.Equal(*c.keys))`, `keyed && false && k.Equal(*c.keys))`,
		"TestReplacedKeys", ""},
	{"target: who lost his TLS key stays", "nvmf/target/access.go",
		`if !c.psk.Equal(c.target.psks[c.host.NQN]) {`, `if false {`,
		"TestSetPSKs", ""},
	{"target: keep-alive time-out does not end a host", "nvmf/target/controller.go",
		`gone := !alive && c.timer != nil && !c.ended`, `gone := false`,
		"TestKeepAliveTimeout", ""},
	{"target: data with a wrong digest is taken", "nvmf/target/receive.go",
		`return pdu.Digest(0, m.into[m.received:m.received+n]) == r.digest`, `return true`,
		"TestWrongDataDigestWritesNothing", ""},
	{"target: bounced data with a wrong digest is taken", "nvmf/target/receive.go",
		`return pdu.Digest(0, r.bounce[:n]) == r.digest`, `return true`,
		"TestWrongDataDigestWritesNothing", ""},
	{"target: a wrong key is told at once", "nvmf/target/auth.go",
		`if c.auth.Err() != nil && !c.refused {`, `if false {`,
		"TestWrongKeysAreSlow", ""},

	// PDUs.
	{"pdu: header digest not looked at", "nvmf/pdu/rules.go",
		`got, want := le.Uint32(b[h.HLen:]), Digest(0, b[:h.HLen]); got != want {`, `got, want := le.Uint32(b[h.HLen:]), Digest(0, b[:h.HLen]); got != want && false {`,
		"TestGoldenFlippedBits", ""},
	{"pdu: data may be longer than agreed", "nvmf/pdu/rules.go",
		`if h.Data > limit {`, `if false {`,
		"TestRefused", ""},
	{"pdu: data anywhere", "nvmf/pdu/rules.go",
		`pdo%r.align() != 0 || `, ``,
		"TestRefused", ""},
	{"pdu: a PDU from the wrong end", "nvmf/pdu/rules.go",
		`case k.fromHost != r.FromHost:`, `case false:`,
		"TestRefused", ""},

	// The initiator.
	{"tcp: data at any offset of a read", "nvmf/tcp/receive.go",
		`case d.Offset != s.moved || d.Length`, `case d.Length`,
		"TestReads|TestHostile", ""},
	{"tcp: more data than a read has", "nvmf/tcp/receive.go",
		` || d.Length > s.total-s.moved:`, `:`,
		"TestReads|TestHostile", ""},
	{"tcp: a wrong data digest is taken", "nvmf/tcp/receive.go",
		`binary.LittleEndian.Uint32(have) != v.crc`, `binary.LittleEndian.Uint32(have) == ^v.crc`,
		"TestDataDigestMismatch", ""},
	{"tcp: success before all of the data", "nvmf/tcp/receive.go",
		`status.Code() == nvme.StatusSuccess && s.moved < s.total && !s.inCapsule && !s.short:`, `false:`,
		"TestReads|TestHostile", ""},
	{"tcp: R2T behind the end", "nvmf/tcp/receive.go",
		`case t.Offset > s.total || t.Length > s.total-t.Offset:`, `case t.Offset > s.total+1<<20:`,
		"TestR2T|TestHostile", ""},
	{"tcp: a guess is right for any command", "nvmf/tcp/receive.go",
		`pdu.DataOf(v.buf).CID == v.next && `, ``,
		"TestGuessOfTwo|TestGuess", ""},
	{"tcp: digests that were not agreed to", "nvmf/tcp/connect.go",
		`if c.ic.Digest != digests {`, `if false {`,
		"TestOpenRefused|TestHostile", ""},
	{"initiator: another namespace after a reconnection", "nvmf/initiator/identity.go",
		`if !now.Same(was) {`, `if false {`,
		"TestResetChanged", "nvmf/tcp"},
	{"initiator: a later run's reservation is overrun", "nvmf/initiator/reservation.go",
		`if o.Key >= r.key {`, `if false {`,
		"TestReservations", "nvmf/tcp"},
	{"initiator: Preempt without Abort", "nvmf/initiator/reservation.go",
		`if !r.plain {`, `if false {`,
		"TestReserveOddTargets|TestReservations", "nvmf/tcp"},

	// Proofs.
	{"dhchap: the host's proof is not compared", "nvmf/dhchap/controller.go",
		`case !hmac.Equal(m.response, c.hostResponse(c.value, c.seq)):`, `case false:`,
		"TestAll|TestReplay", ""},
	{"dhchap: the controller's proof is not compared", "nvmf/dhchap/host.go",
		`case !hmac.Equal(m.response, h.proof):`, `case !hmac.Equal(m.response, m.response):`,
		"TestAll|TestReplay", ""},
	{"dhchap: no proof is one", "nvmf/dhchap/host.go",
		`return nil, fail(IncorrectPayload, "the controller gives no proof of itself")`, `h.done = true
		return nil, nil`,
		"TestNoProof", ""},
	{"dhchap: our own challenge is answered", "nvmf/dhchap/controller.go",
		`case hmac.Equal(m.value, c.value):`, `case false:`,
		"TestReflection", ""},
	{"dhchap: what was not offered", "nvmf/dhchap/host.go",
		`if !slices.Contains(h.Offer.Hashes, c.hash) || !slices.Contains(h.Offer.Groups, c.group) {`, `if false && slices.Contains(h.Offer.Hashes, c.hash) {`,
		"TestNotOffered", ""},
	{"dhchap: messages of another transaction", "nvmf/dhchap/controller.go",
		`case tid != c.tid:`, `case false:`,
		"TestOtherTransaction", ""},

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
		return runLives
`, ``,
		"TestIdle", ""},
	{"store: no last look at the run record", "internal/store/take.go",
		`case f.Record == nil || f.Record.Run != p.me.Run:`, `case f.Record == nil:`,
		"TestOverwritten", ""},
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

// Errno is the errno of err;`, `	return 0
}

// Errno is the errno of err;`,
		"TestErrno", ""},
	{"posixshim: a handle of a closed file is another's", "posixshim/table.go",
		`f != nil && f.handle == h {`, `f != nil {`,
		"TestHandleOfAClosedFileIsNeverAnother", ""},
	{"posixshim: O_APPEND at an offset", "posixshim/data.go",
		`atEnd = atEnd || f.flags.Load()&syscall.O_APPEND != 0`, `_ = atEnd`,
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
	{"posixshim: an error of close is not said", "posixshim/files.go",
		`err = f.current().Close()`, `_ = f.current().Close()`,
		"TestCloseTellsItsError", ""},
	{"posixshim: fsync does nothing", "posixshim/files.go",
		`err = errors.Join(f.unwritten(), f.current().Sync())`, `err = f.unwritten()`,
		"TestFsyncReachesTheFile", ""},
	{"posixshim: locks of two owners on one range", "posixshim/locks.go",
		`h.owner != l.owner && h.overlaps(l) && (h.write || l.write)`, `false && h.overlaps(l)`,
		"TestConflict", ""},

	// The solo partition, and the division of a store.
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
		"TestSoloFirst", ""},
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
}

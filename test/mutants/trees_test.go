package mutants

// editsOfTrees are the faults of the tree of a job: of its index, and of the processes that have files in it.
var editsOfTrees = []edit{
	// What a process has in the tree of its job.
	{"tree: others' mounts are never looked at again", "tree/source.go",
		`s.since.Before(in.asked)`, `s.since.IsZero()`,
		"TestOthers", ""},
	{"tree: an append goes where a killed index had room", "tree/write.go",
		`n > 0 && !f.fs.client.still(r.by)`, `false`,
		"TestAppendThroughAKill", ""},
	{"tree: an append that the next index has found is made again", "tree/write.go",
		`if in.layout.at(end-1, end).from == (`, `if in.layout.at(end-1, end).from != (`,
		"TestAppendThroughAKill", ""},
	{"tree: who has a lock does not see what the last one wrote", "tree/locks.go",
		`err = in.refresh()`, `err = nil`,
		"TestCounter", ""},
	{"tree: a lock is given up before what was written is published", "tree/locks.go",
		`published := in.publish()`, `published := error(nil)`,
		"TestCounter", ""},
	{"tree: what was published is read by the map of before", "tree/publish.go",
		`	in.layout.forget()
	rest := 0`, `	rest := 0`,
		"TestOneFile|TestRandom", ""},
	{"tree: an open shows less than was published before", "tree/fs.go",
		`err := in.refresh(); err != nil {
		return nil, errors.Join(err, f.close())`, `err := error(nil); err != nil {
		return nil, errors.Join(err, f.close())`,
		"TestTwoDescriptors|TestRandom", ""},
	{"tree: the index cuts what it does not know", "tree/file.go",
		`err := in.publish(); err != nil {
		return err
	}
	var answer wire.AttrAnswer
	in.layout`, `err := error(nil); err != nil {
		return err
	}
	var answer wire.AttrAnswer
	in.layout`,
		"TestRandom", ""},
	{"tree: O_TRUNC leaves what was not published", "tree/fs.go",
		`if !fs.unpublished() {`, `if true {`,
		"TestTwoDescriptors", ""},
	{"tree: a shard of an earlier cut is written on", "tree/inode.go",
		`end > 0 || in.cut == in.attr.Cut {`, `end >= 0 {`,
		"TestDeath", ""},
	{"tree: a close does not sync the shard", "tree/publish.go",
		`	case err == nil:
		err = in.shard.Sync()
	}`, `	}`,
		"TestPowerLoss", ""},
	{"tree: an append goes over what the process has written", "tree/write.go",
		`size > max(in.attr.Size, in.reserved)`, `false`,
		"TestAppend", ""},
	{"tree: space of before a cut counts", "tree/publish.go",
		`	in.reserved = 0
`, ``,
		"TestAppendBehindCut", ""},
	{"tree: what the last close lost is published by nobody, and counted", "tree/publish.go",
		`	if in.shard == nil {
		in.noting.Lock()`, `	if false {
		in.noting.Lock()`,
		"TestFailedClose", ""},
	{"tree: a publication sets the time of the write", "tree/inode.go",
		`	if !touched.IsZero() {`, `	if false {`,
		"TestTimes", ""},
	{"tree: a file is complete that is being written to again", "tree/publish.go",
		`	if !in.attr.Closed {`, `	if true {`,
		"TestRewrite", ""},
	{"tree: holes are what the buffer has", "tree/read.go",
		`clear(b)`, `clear(b[:0])`,
		"TestRandom", ""},
	{"tree: a map of many ranges ends early", "tree/layout.go",
		`	if !answer.More {`, `	if true {`,
		"TestManyRanges", ""},
	{"tree: what the index releases stays", "tree/fs.go",
		`fs.own.Unlink(microfs.RootIno, s.Name())`, `error(nil)`,
		"TestOneFile|TestNoName", ""},
	{"tree: what could not be read is not tried again", "tree/read.go",
		`errors.Is(lost.cause, e)`, `e == nil`,
		"TestRandom|TestRetry", ""},

	// The index of a job's tree.
	{"wire: the checksum of a message is not looked at", "tree/wire/header.go",
		`if le.Uint32(b[offCRC:]) != sum(b) {`, `if false {`,
		"TestGone", ""},
	{"wire: a connection is used on that has failed", "tree/wire/conn.go",
		`	c.gone = err
`, ``,
		"TestGone", ""},
	{"wire: a connection that has failed is closed again", "tree/wire/conn.go",
		`	if c.gone != nil {
		return nil // it`, `	if false {
		return nil // it`,
		"TestCloseOnce", ""},
	{"wire: data are left out of the memory that is shared", "tree/wire/codec.go",
		`copy(c.window, *v)`, ``,
		"TestShare", ""},
	{"wire: data are left in the memory that is shared", "tree/wire/codec.go",
		`case c.window != nil && *v == nil:`, `case c.window != nil:`,
		"TestShare", ""},
	{"wire: more data than the memory that is shared has", "tree/wire/codec.go",
		`	case n > MaxData:
		c.fail(`, `	case n > MaxData && !c.reading:
		c.fail(`,
		"TestShareTooMuch", ""},
	{"index: memory that a process shares is not looked at", "tree/index/index.go",
		`	c.peer.Share(window)
`, ``,
		"TestTheIndexReadsOnlyItsOwn", ""},
	{"owner: the other end can make the shared memory shorter", "internal/owner/window.go",
		`unix.F_SEAL_SHRINK|`, ``,
		"TestWindow", ""},
	{"owner: shared memory of another size is taken", "internal/owner/window.go",
		`if st.Size != int64(size) {`, `if false {`,
		"TestIntroductions", ""},
	{"index: a file without a name goes while others have it open", "tree/index/open.go",
		`if f.opens--; f.opens > 0 {`, `if f.opens--; f.opens > 1 {`,
		"TestFilesWithoutAName", ""},
	{"index: a file is complete whose writer has died", "tree/index/open.go",
		`f.torn = f.torn || torn && writers > 0`, ``,
		"TestAdoption", ""},
	{"index: a lock for reading is in nobody's way", "tree/wire/locks.go",
		`if l[i].Write || want.Write {`, `if l[i].Write {`,
		"TestLocks|TestRandomLocks", "tree/index"},
	{"index: two appends get one place", "tree/index/bytes.go",
		`		s.file.reserved = s.reserved
`, ``,
		"TestAppends", ""},
	{"index: space of the dead is never given again", "tree/index/bytes.go",
		`	f.reserved = 0
	for s := range`, `	for s := range`,
		"TestSpaceOfAppendersThatAreGone", ""},
	{"index: a cut takes others' space", "tree/index/bytes.go",
		`		s.reserved = 0
		f.updateReserved()
	}
	return f.attrAnswer(nil)`, `		f.reserved = 0
	}
	return f.attrAnswer(nil)`,
		"TestAppendsBesideACut", ""},
	{"index: a publication of another birth is taken", "tree/index/bytes.go",
		`case p.Birth != a.Birth:`, `case false:`,
		"TestWhoMayWhat", ""},
	{"index: a publication is answered before it is durable", "tree/index/bytes.go",
		`c.x.needsSync = c.x.needsSync || p.Durable`, ``,
		"TestSyncs|TestSyncFails", ""},
	{"index: a close is answered before it is durable", "tree/index/open.go",
		`f.x.needsSync = f.x.needsSync || owing`, `_ = owing`,
		"TestSyncs|TestSyncFails", ""},
	{"index: a call counts as durable that was not synced", "tree/index/sync.go",
		`	return x.sync()
}

// sync`, `	x.synced()
	return nil
}

// sync`,
		"TestSyncs|TestSyncFails", ""},
	{"index: shards of the file's cut are released", "tree/index/release.go",
		`if k.cut == a.Cut {`, `if false {`,
		"TestReleases", ""},
	{"index: shards are released that ranges name", "tree/index/release.go",
		`		f.shards.remove(k)
`, ``,
		"TestReleases", ""},
	{"index: shards of a file that is gone stay", "tree/index/release.go",
		`f.free(f.shards, f.unmapped)`, ``,
		"TestReleases", ""},
	{"index: shards are released before it is durable that nobody needs them", "tree/index/release.go",
		`if x.unsynced && (`, `if false && (`,
		"TestReleasesSync", ""},
	{"index: a shard of another birth is kept", "tree/index/release.go",
		`err == nil && f.birth == s.Birth {`, `err == nil {`,
		"TestShards", ""},
	{"index: a panic of a call ends more than the call", "tree/index/client.go",
		`body, list, err = nil, nil, x.crash(op.String(), r)`, `panic(r)`,
		"TestPanic", ""},
	{"index: a panic in an adoption ends the process", "tree/index/adopt.go",
		`defer panics.Contain("the adoption of what a dead process has written", &err)`,
		`_ = panics.Contain`,
		"TestAdoptionPanics", ""},
	{"index: an adoption takes others' bytes", "tree/index/adopt.go",
		`if s.Kind == microfs.SpanHole {`, `if true {`,
		"TestAdoption", ""},
	{"index: an adoption brings back what was cut", "tree/index/adopt.go",
		`a.Cut != s.Cut || `, ``,
		"TestRandom", ""},
	{"index: zeros of a shard hide others' bytes", "tree/index/adopt.go",
		`begin, err = skipZeros(f, begin, end)`, `begin, err = begin, nil`,
		"TestManyDie", ""},
	{"index: a complete shard of which nothing was told is lost", "tree/index/adopt.go",
		`if at, err := x.inode(s.Ino); err == nil && at.Birth == s.Birth && !at.Closed {`,
		`if at, err := fs.Stat(microfs.RootIno, s.Name(), false); err == nil && !at.Closed {`,
		"TestAdoptionAtTheStart", ""},
	{"index: a check does not look how long a shard is", "tree/index/check.go",
		`err == nil && end < r.End()`, `false`,
		"TestCheck", ""},
	{"index: a check takes away what may be published", "tree/index/check.go",
		`a.Birth == p.Birth && a.Cut == p.Cut`, `a.Birth != p.Birth`,
		"TestCheckFindsNothing", ""},
	{"posixshim: a name that is gone takes an open file of the tree along", "posixshim/files.go",
		`(m.mount.Tree || p.Revalidate`, `(p.Revalidate`,
		"TestOpenFilesInTree", ""},
	{"index: who writes is not asked whether it lives", "tree/index/adopt.go",
		`	c.reap(a.Ino)
`, ``,
		"TestTheDeadAreAskedFor", ""},
	// Where the index was killed.
	{"tree: the successor is not told who has what open", "tree/successor.go",
		`	for ino, o := range c.open {`, `	for ino, o := range map[microfs.Ino]*opened{} {`,
		"TestSuccessor", ""},
	{"tree: the successor does not know who has a lock", "tree/successor.go",
		`		if len(locks) == 0 {`, `		if true {`,
		"TestLostToTheSuccessor", ""},
	{"tree: who was replaced comes back", "tree/index/client.go",
		`h.Before == x.id || `, ``,
		"TestWhoMayComeBack", ""},
	{"tree: who comes back ends who has its partition now", "tree/index/client.go",
		`h.Before != uuid.Nil && x.places`, `h.Before == uuid.Max && x.places`,
		"TestWhoWasReplaced", "tree"},
	{"index: an append goes over what the living have not told", "tree/index/calls.go",
		`	if err := s.file.pendingAdoption(); err != nil {
		return nil, err
	}
	answer, err := s.reserve`, `	answer, err := s.reserve`,
		"TestSuccessorsWait", ""},
	{"index: a file is complete whose writer died with the index", "tree/index/open.go",
		`!f.torn && !(f.reopened && f.x.hasUnfinished(f))`, `!f.torn`,
		"TestSuccessorAndTheDead", "tree"},
	{"index: a file is complete before it is known who died with the index", "tree/index/calls.go",
		`r.Writer && f.reopened && f.writers == 1`, `false`,
		"TestSuccessorsWait", ""},
	{"index: a file of which all was synced before the kill is never complete", "tree/index/successor.go",
		`return nil, f.write.MapRanges(nil, 0, a.Mtime)`, `return nil, nil`,
		"TestCompleteByTheSuccessor", "tree"},
	{"index: a birth is not looked at where a file is opened again", "tree/index/successor.go",
		`case a.Birth != r.Birth:`, `case a.Birth == 0:`,
		"TestReopen", ""},
	{"serve: a connection lives as long as its socket", "serve/life.go",
		`		_ = l.Close()
`, ``,
		"TestLife", ""},
	{"serve: a host that vanishes is noticed late", "serve/index.go",
		`Idle: every, `, ``,
		"TestHearOfLoss", ""},
	{"index: nobody waits for an adoption", "tree/index/adopt.go",
		`		if p.concerns(a) {`, `		if false {`,
		"TestAdoption", ""},
	{"index: a client acts for another user", "tree/index/index.go",
		`if x.cred != c {`, `if x.cred == nil {`,
		"TestCredentialsAreTheClients", ""},
}

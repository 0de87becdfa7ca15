package mutants

// editsOfDrain are the faults of checkpoints on a second level.
var editsOfDrain = []edit{
	{"drain: what was copied is not read back", "drain/put.go",
		`	if err := verify(ctx, p.root, p.set, *p.o); err != nil {`, `	if err := error(nil); err != nil {`,
		"TestJournalLies", ""},
	{"drain: files that have changed meanwhile make a set", "drain/put.go",
		`size != f.Size || !modified.Equal(f.Modified)`, `size != f.Size || false && modified.IsZero()`,
		"TestChanged", ""},
	{"drain: what is wrong is taken up again", "drain/put.go",
		`errors.Is(err, ErrChanged) || errors.Is(err, ErrDamaged)`, `errors.Is(err, ErrChanged)`,
		"TestJournalLies", ""},
	{"drain: a segment has another's checksum", "drain/copy.go",
		`		err = c.record(at, sum)
	}`, `		err = c.record(at, sum+1)
	}`,
		"TestPut", ""},
	{"drain: a journal is not believed", "drain/partial.go",
		`p.done[place{e.File, e.Segment}] = true`, `_ = sums`,
		"TestGoesOn", ""},
	{"drain: a line that was cut short is believed", "drain/partial.go",
		`if !whole || json`, `if _ = whole; json`,
		"TestGoesOn", ""},
	{"drain: the checksum of a manifest is not looked at", "drain/manifest.go",
		`|| crc64.Checksum(set.Bytes()) != uint64(e.Sum)`, ``,
		"TestDamage", ""},
	{"drain: holes are not in the checksum", "drain/get.go",
		`sum = ofZeros(sum, data-off)`, `_ = ofZeros`,
		"TestGet", ""},
	{"drain: what comes back is not compared", "drain/get.go",
		`if Sum(sum) != f.Sums[segment] {`, `if false {`,
		"TestGet", ""},
	{"drain: a half-drained set has its name", "drain/partial.go",
		`path.Join(partialDir, label(s))`, `label(s)`,
		"TestCutShort", ""},
}

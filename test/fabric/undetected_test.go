package fabric

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/wiretest"
)

// outcome is the effect of a byte that was damaged without digests.
type outcome int

const (
	nothing  outcome = iota // no loss: detected and repeated, or without effect
	refused                 // an operation failed with an errno
	reported                // bytes of a file are EIO on the next mount
	unusable                // the next mount fails
	behind                  // the next mount silently shows a state before the last operations
	wrong                   // silently wrong bytes or names
	outcomes
)

var outcomeNames = [outcomes]string{"no difference", "errno", "EIO later", "no mount", "newest records lost", "wrong bytes"}

func (o outcome) String() string { return outcomeNames[o] }

// TestCorruptWithoutDigests damages one byte of one PDU. No read may ever return wrong bytes: the operation fails, or the damaged data is
// EIO afterwards. Faults that are not detected at once are counted.
func TestCorruptWithoutDigests(t *testing.T) {
	s := shape{name: "no digests", lba: 4096, capsule: 8192}
	seen := lengthOf(t, s)
	for _, to := range []wiretest.Direction{wiretest.ToTarget, wiretest.ToHost} {
		t.Run(to.String(), func(t *testing.T) {
			runs := seen[to] * places
			step := 1
			if !*all {
				step = runs/some(40) + 1
			}
			table := map[string]*[outcomes]int{}
			for i := 0; i < runs; i += step {
				kind, o := corruptOnce(t, s, to, 1+i%seen[to], i/seen[to])
				if kind == "" {
					continue // the run had fewer PDUs
				}
				if table[kind] == nil {
					table[kind] = new([outcomes]int)
				}
				table[kind][o]++
			}
			for _, kind := range slices.Sorted(maps.Keys(table)) {
				var b strings.Builder
				for o, n := range table[kind] {
					if n > 0 {
						fmt.Fprintf(&b, "  %s %d", outcome(o), n)
					}
				}
				t.Logf("%-38s%s", kind, b.String())
				require.Zero(t, table[kind][wrong])
			}
		})
	}
}

// corruptOnce runs the workload with one damaged byte. It returns the affected part of the PDU, and the outcome.
func corruptOnce(t *testing.T, s shape, to wiretest.Direction, n, at int) (kind string, o outcome) {
	r := newRig(t, s, fmt.Sprintf("byte %d of PDU %d, %s", at, n, to))
	defer r.close()
	r.patient = 3 * commandTimeout
	require.NoError(t, r.mount(), r.what)
	var struck atomic.Int32
	inner := damage(to, n, 1<<30, at, &struck)
	r.wire.Script(func(p *wiretest.PDU) wiretest.Action {
		a := inner(p)
		if a != wiretest.Pass {
			kind = p.Type.String() + " " + field(p, placeOf(at, len(p.Bytes)))
		}
		return a
	})
	w := newWork(r.fs)
	var states []map[string]*content
	known := true // whether the effect of the last operation is known
	do := func(st step) {
		states = append(states, w.clone())
		err := st.do(w)
		require.NotErrorIs(t, err, errWrong, "%s: %s", r.what, st.name)
		if errors.Is(err, errSkipped) {
			return
		}
		if known = err == nil; !known {
			var errno unix.Errno
			require.True(t, errors.As(err, &errno), "%s: %s: %v", r.what, st.name, err)
			o = refused
		}
	}
	for _, st := range workload() {
		do(st)
	}
	r.wire.Script(nil) // waits for a running script
	if !known {
		do(mkdir("end")) // a refused operation has no effect after this
	}
	states = append(states, w.clone())
	r.crash()
	mounted := false
	err := r.direct(func(fs *microfs.FS) {
		mounted = true
		found := judge(t, fs, states, r.what)
		if found == wrong && !known {
			found = refused // the operation may have had its effect, or a part of it
		}
		o = max(o, found)
	})
	if !mounted {
		require.Error(t, err)
		o = unusable
	}
	return kind, o
}

// field names the field of a PDU that byte b belongs to.
func field(p *wiretest.PDU, b int) string {
	head := int(p.Bytes[2])
	switch {
	case b >= head:
		return "data"
	case b < 4:
		return "type, flags, HLEN, PDO"
	case b < 8:
		return "PLEN"
	case p.Type != pdu.TypeCapsuleCmd:
		return "rest of header"
	}
	switch b -= 8; {
	case b < 2:
		return "opcode, flags"
	case b < 4:
		return "CID"
	case b < 8:
		return "NSID"
	case b < 24:
		return "reserved"
	case b < 40:
		return "SGL"
	case b < 48:
		return "SLBA"
	case b < 50:
		return "NLB"
	}
	return "dwords 12-15"
}

func (w *work) clone() map[string]*content {
	m := maps.Clone(w.model)
	for path, c := range m {
		x := *c
		x.data = slices.Clone(c.data)
		m[path] = &x
	}
	return m
}

// judge compares the mounted file system with earlier states, newest first. Unreadable files count as damaged, not as wrong.
func judge(t *testing.T, fs *microfs.FS, states []map[string]*content, what string) outcome {
	paths := names(t, fs, "")
	for i := len(states) - 1; i >= 0; i-- {
		if !slices.Equal(slices.Sorted(maps.Keys(states[i])), paths) {
			continue
		}
		damaged, same := false, true
		for path, c := range states[i] {
			if c.dir {
				continue
			}
			f, err := fs.Open(microfs.RootIno, path, unix.O_RDONLY, 0)
			require.NoError(t, err, what)
			err = compare(f, c.data)
			require.NoError(t, f.Close())
			switch {
			case errors.Is(err, errWrong):
				same = false
			case err != nil:
				damaged = true
			}
		}
		switch {
		case !same:
		case i < len(states)-1:
			return behind
		case damaged:
			return reported
		default:
			return nothing
		}
	}
	return wrong
}

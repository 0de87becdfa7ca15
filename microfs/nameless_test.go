package microfs

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCrashNameless crashes into workloads that write to an open file without a name and close it. Its
// hugeblocks are free at once, without a log record, so that they may be written again while the newest
// log image still lists their data as pending.
func TestCrashNameless(t *testing.T) {
	skipRace(t)
	var held *File
	nothing := func(*model) {}
	letters := []letter{
		{"write nameless", func(m *model) (op, bool) {
			m.writes++
			data := stamp(3000, m.writes)
			return op{name: "write nameless", model: nothing, fs: func(*FS) error {
				if held == nil {
					return nil
				}
				_, err := held.WriteAt([][]byte{data}, 0)
				return err
			}}, true
		}},
		{"close nameless", func(*model) (op, bool) {
			return op{name: "close nameless", model: nothing, fs: func(*FS) error {
				if held == nil {
					return nil
				}
				f := held
				held = nil
				return f.Close()
			}}, true
		}},
		alphabet[0], alphabet[1], alphabet[2], alphabet[8],
	}
	prepare := setups[4]
	prepare.live = func(*model) []op {
		create := createOp("/t", 0o600)
		create.fs = func(fs *FS) (err error) {
			held, err = fs.Open(RootIno, "/t", unix.O_CREAT|unix.O_RDWR, 0o600)
			return err
		}
		unlink := op{
			name: "unlink", fs: func(fs *FS) error { return fs.Unlink(RootIno, "/t") },
			model: func(m *model) { delete(m.root.dir, "t") },
		}
		return []op{create, unlink}
	}
	for _, cache := range []bool{false, true} {
		for _, full := range []bool{false, true} {
			t.Run(fmt.Sprintf("cache %v, page full %v", cache, full), func(t *testing.T) {
				s := prepare
				if full { // the image of the write to the file without a name starts a page
					s.prepare = func(c *crasher, fs *FS) { setups[4].prepare(c, fs); c.fillTail(fs, 160) }
				}
				c := newCrasher(t, crashConfig{lba: 4096, cache: cache, setup: s}, 1)
				c.images.MaxImages, c.images.Tears, c.images.Samples, c.images.NoPairs = 1<<6, 1, 2, true
				depth := 3
				if testing.Short() || cache {
					depth = 2
				}
				for n := range depth + 1 {
					each(letters, n, func(ls []letter) {
						if r := c.record(ls); r != nil && n > 0 {
							c.crash(r)
						}
					})
				}
				t.Logf("%s", &c.n)
			})
		}
	}
}

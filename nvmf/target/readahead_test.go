package target

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestReadAhead checks that only sequential reads cause a read-ahead, and that it does
// not go beyond the end of memory.
func TestReadAhead(t *testing.T) {
	const page = 4096
	memory := make([]byte, 1<<20)
	type read struct{ offset, length int64 }
	for name, tt := range map[string]struct {
		reads []read
		start int64
		ahead int
	}{
		"the first from the beginning": {[]read{{0, page}}, page, readAhead},
		"in a row":                     {[]read{{8 * page, page}, {9 * page, page}}, 10 * page, readAhead},
		"not in a row":                 {[]read{{0, page}, {9 * page, page}}, 0, 0},
		"again":                        {[]read{{0, page}, {0, page}}, 0, 0},
		"near the end":                 {[]read{{1<<20 - 3*page, page}, {1<<20 - 2*page, page}}, 1<<20 - page, page},
		"at the end":                   {[]read{{1<<20 - 2*page, page}, {1<<20 - page, page}}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var r readahead
			for _, x := range tt.reads {
				r.read(memory, x.offset, x.offset+x.length)
			}
			assert.Len(t, r.next, tt.ahead)
			if tt.ahead > 0 {
				assert.Same(t, &memory[tt.start], &r.next[0])
			}
			for range readAhead/readAheadStep + 1 {
				r.step()
			}
			assert.Empty(t, r.next)
		})
	}
}

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
)

// linkRank writes a file in pieces of a size, syncs and closes it, and reads it in another process. It prints elapsed and processor time
// of both.
const linkRank = `
import json, os, resource, sys, time
size, piece = int(sys.argv[1]), int(sys.argv[2])
data = memoryview(bytearray(os.urandom(piece)))
def timed(work):
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    work()
    end, after = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    return [end - begin, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime]
def write():
    fd = os.open("/nvmecr/f", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    for _ in range(size // piece):
        os.write(fd, data)
    os.fsync(fd)
    os.close(fd)
def read():
    fd = os.open("/nvmecr/f", os.O_RDONLY)
    while os.readv(fd, [data]):
        pass
    os.close(fd)
write() # the partition is there, and the connection
print(json.dumps([timed(write), timed(read)]), flush=True)
`

// TestLink measures a rank's writes and reads over links with limited rates and delays: docs/notes/2026-11-26-links.md.
func TestLink(t *testing.T) {
	if os.Getenv("NVMECR_TEST_LINK") == "" {
		t.Skip("it measures, for minutes: set NVMECR_TEST_LINK=1")
	}
	for _, link := range []struct {
		rate  float64 // in bits a second; 0: as fast as this machine
		delay time.Duration
	}{{}, {1e9, 0}, {1e9, 100 * time.Microsecond}, {1e9, time.Millisecond}, {2.5e9, 100 * time.Microsecond}} {
		t.Run(fmt.Sprintf("%.1fGbit/%v", link.rate/1e9, link.delay), func(t *testing.T) {
			c := newCluster(t, config.ViewRank)
			if link.rate > 0 {
				c.Host("n1").Limit(link.rate, link.delay)
			}
			c.measureLink()
		})
	}
}

// measureLink logs medians of several rounds with different sizes of calls, with and without checksums.
func (c *cluster) measureLink() {
	const size, rounds = 64 << 20, 2
	script := filepath.Join(c.Dir, "link.py")
	require.NoError(c.t, os.WriteFile(script, []byte(linkRank), 0o644))
	target := c.serveOn(0, "mem:512M")[0]
	found := make(map[string][]float64)
	measure := func(piece int, sums string) {
		flags := []string{"--name", "link", "--fresh", "--target", target, "--data-checksum", sums}
		job := c.run("n1", flags, []string{"python3", script, fmt.Sprint(size), fmt.Sprint(piece)})
		require.NoError(c.t, job.Wait(c.t.Context()))
		var seconds [2][2]float64
		require.NoError(c.t, json.Unmarshal([]byte(job.Stdout.Lines()[0]), &seconds))
		for i, what := range []string{"write", "read"} {
			name := fmt.Sprintf("%s of %4d KiB, checksums %-3s", what, piece>>10, sums)
			found[name+", MB/s"] = append(found[name+", MB/s"], size/1e6/seconds[i][0])
			found[name+", ms of processor"] = append(found[name+", ms of processor"], 1e3*seconds[i][1])
		}
	}
	for range rounds {
		for _, piece := range []int{256 << 10, 1 << 20, 8 << 20} {
			measure(piece, "on")
			measure(piece, "off")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all := found[name]
		slices.Sort(all)
		c.t.Logf("%-52s %5.0f (%.0f to %.0f)", name, all[len(all)/2], all[0], all[len(all)-1])
	}
}

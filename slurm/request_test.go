package slurm

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

func TestParseRequest(t *testing.T) {
	defaults := Request{Capacity: nvmf.GiB, Retain: time.Hour}
	for text, want := range map[string]Request{
		"nvmf:2":                                  {Targets: 2, Capacity: 2 * nvmf.GiB},
		"nvmf:2,capacity=40G":                     {Targets: 2, Capacity: 40 * nvmf.GiB},
		"nvmf:1,name=run7":                        {Targets: 1, Capacity: nvmf.GiB, Name: "run7", Retain: time.Hour},
		"nvmf:1,strict,retain=2d":                 {Targets: 1, Capacity: nvmf.GiB, Strict: true, Retain: 48 * time.Hour},
		"nvmf:3,retain=90,name=a.b":               {Targets: 3, Capacity: 3 * nvmf.GiB, Name: "a.b", Retain: 90 * time.Second},
		"nvmf:2,copies":                           {Targets: 2, Capacity: 2 * nvmf.GiB, Copies: "partner"},
		"nvmf:2,copies=partner":                   {Targets: 2, Capacity: 2 * nvmf.GiB, Copies: "partner"},
		"nvmf:3,copies=rs:2+1":                    {Targets: 3, Capacity: 3 * nvmf.GiB, Copies: "rs:2+1"},
		"nvmf:2,copies-sync":                      {Targets: 2, Capacity: 2 * nvmf.GiB, CopiesSync: true},
		"nvmf:1,copies,copies-sync":               {Targets: 1, Capacity: nvmf.GiB, Copies: "partner", CopiesSync: true},
		"nvmf:1,name=x,retain=0":                  {Targets: 1, Capacity: nvmf.GiB, Name: "x"},
		"nvmf:1,capacity=512M,name=x,retain=365d": {Targets: 1, Capacity: 512 * nvmf.MiB, Name: "x", Retain: maxRetain},
	} {
		r, err := ParseRequest(text, defaults)
		require.NoError(t, err, text)
		assert.Equal(t, want, r, text)
	}
	for _, text := range []string{"", "nvmf", "nvmf:0", "nvmf:x", "nvmf:9999", "gpu:1", "nvmf:1,", "nvmf:1,copies", "nvmf:2,copies=", "nvmf:2,copies=none", "nvmf:2,copies=rs:2",
		"nvmf:2,copies=rs:2+1", "nvmf:3,copies=rs:2+1,copies-sync", "nvmf:1,size=3", "nvmf:1,capacity=much",
		"nvmf:1,name=", "nvmf:1,name=../x", "nvmf:1,name=.x", "nvmf:1,name=aaaaaaaaaaaaaaaaaaaaaaaaa", "nvmf:1,retain=366d", "nvmf:1,retain=d", "nvmf:1,retain=2dd", "nvmf:1,retain=-1"} {
		_, err := ParseRequest(text, defaults)
		assert.ErrorIs(t, err, ErrRequest, text)
	}
}

func TestParseJob(t *testing.T) {
	const line = "7|1000|%s|cn[1-2]|4|1|7|N/A|N/A|N/A|%s|\n"
	for gres, request := range map[string]string{
		"gres:nvmf:2": "nvmf:2", "gres:nvmf": "nvmf:1", "gres/nvmf=3": "nvmf:3", "gres:gpu:2,gres:nvmf:4": "nvmf:4",
		"gres:gpu:2": "", "gres:nvmfs:2": "", "N/A": "",
	} {
		j, err := parseJob(7, fmt.Sprintf(line, "RUNNING", gres))
		require.NoError(t, err)
		assert.Equal(t, Job{ID: 7, Own: "7", Whole: "7", User: 1000, Nodes: "cn[1-2]", Ranks: 4, Restarts: 1, Request: request}, j)
	}
	for state, over := range map[string]bool{"COMPLETED": true, "NODE_FAIL": true, "CANCELLED": true, "PENDING": false, "RUNNING": false,
		"REQUEUED": false, "COMPLETING": false, "CONFIGURING": false, "SUSPENDED": false, "REQUEUE_HOLD": false} {
		j, err := parseJob(7, fmt.Sprintf(line, state, "N/A"))
		require.NoError(t, err)
		assert.Equal(t, over, j.Over, state)
	}

	const array = "8|1000|COMPLETED||1|0|7|1|N/A|N/A|N/A|\n7|1000|RUNNING|cn3|1|0|7|2|N/A|N/A|N/A|\n"
	j, err := parseJob(7, array)
	require.NoError(t, err)
	assert.Equal(t, Job{ID: 7, Own: "7_2", Whole: "7_2", User: 1000, Nodes: "cn3", Ranks: 1}, j, "another task of its array has ended")
	j, err = parseJob(8, "8|1000|RUNNING|cn3|1|0|8|N/A|7|1|N/A|\n")
	require.NoError(t, err)
	assert.Equal(t, []string{"7+1", "7"}, []string{j.Own, j.Whole})
	for _, text := range []string{"", "8|1000|RUNNING|", array[:10], "slurm_load_jobs error"} {
		_, err = parseJob(7, text)
		require.Error(t, err, text)
		require.NotErrorIs(t, err, ErrNoJob, "what has space keeps it")
	}
}

func TestInComment(t *testing.T) {
	for comment, want := range map[string]string{"": "", "other": "", "nvmf:2": "nvmf:2", " nvmf:2,strict  for run 7": "nvmf:2,strict", "for nvmf:2": ""} {
		assert.Equal(t, want, InComment(comment), comment)
	}
}

// TestDecodeLease checks that a truncated or damaged lease is refused.
func TestDecodeLease(t *testing.T) {
	b, err := encode(&Lease{Name: "a", Job: 7})
	require.NoError(t, err)
	l, err := decode(b)
	require.NoError(t, err)
	assert.Equal(t, uint32(7), l.Job)
	for i := range b[:len(b)-1] {
		changed := append([]byte(nil), b...)
		changed[i] ^= 1
		if got, err := decode(changed); err == nil {
			assert.Equal(t, l, got, "byte %d: a change of what is no value", i)
		}
		_, err := decode(b[:i])
		require.ErrorIs(t, err, ErrLease)
	}
}

var update = flag.Bool("update", false, "write the golden files")

// TestGoldenLease checks that the stored form does not change.
func TestGoldenLease(t *testing.T) {
	ended := time.Unix(1e9+60, 0).UTC()
	l := &Lease{Name: "slurm-u1000-run7", User: 1000, Request: Request{Targets: 2, Capacity: 40 * nvmf.GiB, Name: "run7", Retain: 48 * time.Hour, Strict: true},
		Job: 7, Restarts: 1, Nodes: "cn[1-2]", Ranks: 56, Size: 20 * nvmf.GiB, Mapping: "cn1=0*28;cn2=1*28", Reused: true,
		Targets: []LeasedSpot{{Target: "a", Namespace: "trtype:TCP traddr:10.0.0.1 trsvcid:4420 subnqn:nqn.a ns:1"}, {Target: "b"}},
		HostNQN: "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001", Key: "DHHC-1:00:x:", Ready: true, Started: time.Unix(1e9, 0).UTC(), Ended: &ended}
	b, err := encode(l)
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("testdata/lease.golden", b, 0o600))
	}
	want, err := os.ReadFile("testdata/lease.golden")
	require.NoError(t, err)
	assert.Equal(t, string(want), string(b))
	again, err := decode(want)
	require.NoError(t, err)
	assert.Equal(t, l, again)
}

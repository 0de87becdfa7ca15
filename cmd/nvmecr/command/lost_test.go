package command

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/checkpoint"
	"nvmecr/drain"
	"nvmecr/internal/store"
)

// TestLostIsTold checks that a checkpoint of which too little is left is told of, when a run begins and by nvmecr rebuild.
func TestLostIsTold(t *testing.T) {
	areas, domains, code := newAreas(t), []string{"a", "b", "c"}, drain.NewCode(2, 1)
	at := time.Unix(1, 0)
	put := &drain.Set{Store: "s", Pattern: "ckpt.{step}.*", Name: "3", Ranks: 1, Tree: true, Ended: at, Files: []drain.File{{Path: "/ckpt.3.0", Modified: at}}}
	_, err := drain.NewCopies(areas, domains, code).Put(t.Context(), put, emptyFiles{}, nil, drain.Options{})
	require.NoError(t, err)
	left, err := drain.NewCopies([]*drain.Level{nil, areas[1], nil}, domains, code).Sets()
	require.NoError(t, err)
	store2 := checkpoint.Set{Name: "2", Files: []checkpoint.File{{Path: "/ckpt.2.0", Modified: at, Closed: true}}}
	store4 := checkpoint.Set{Name: "4", Files: []checkpoint.File{{Path: "/ckpt.4.0", Modified: at}}, Missing: []checkpoint.Part{{Path: "/ckpt.4.0", Open: true}}}
	merged := drain.Merge([]checkpoint.Series{{Pattern: "ckpt.{step}.*", Sets: []checkpoint.Set{store2, store4}}}, nil, left, nil, "")
	require.Len(t, merged, 1)
	s := merged[0]
	var said bytes.Buffer
	o := &restoreOptions{}
	o.stderr = &said
	require.NoError(t, o.restoreNewest(&cobra.Command{}, nil, store.Proc{}, &s))
	assert.Equal(t, "nvmecr: checkpoint 3 of ckpt.{step}.* is lost: ckpt.3.0 of rank 0 has lost bytes\n"+
		"nvmecr: newest complete checkpoint of ckpt.{step}.*: 2, in the store\n", said.String())

	var errs []string
	fail := func(err error) { errs = append(errs, err.Error()) }
	assert.Empty(t, findLost([]drain.Series{s}, fail))
	require.Len(t, errs, 1)
	assert.True(t, strings.HasPrefix(errs[0], "3 is lost"), errs[0])
	s.Checkpoints[1].Drained = put
	assert.Empty(t, findLost([]drain.Series{s}, fail))
	assert.Contains(t, errs[1], "nvmecr restore --from level2")
}

// TestRestoredIsNotPassedOver checks that a run which begins with the greatest number, since the newest checkpoint cannot be copied back, does
// not say that it is passed over.
func TestRestoredIsNotPassedOver(t *testing.T) {
	of := func(name string, at int64) checkpoint.Set {
		return checkpoint.Set{Name: name, Files: []checkpoint.File{{Path: "/ckpt." + name, Size: 1, Modified: time.Unix(at, 0)}}}
	}
	s := drain.Series{Pattern: "ckpt.{step}", Checkpoints: []drain.Checkpoint{{Set: of("500", 1), Stored: true}, {Set: of("310", 2)}}}
	var said bytes.Buffer
	o := &restoreOptions{}
	o.stderr = &said
	require.NoError(t, o.restoreNewest(&cobra.Command{}, nil, store.Proc{}, &s))
	assert.Equal(t, "nvmecr: newest complete checkpoint of ckpt.{step}: 500, in the store\n", said.String())
	said.Reset()
	s.Checkpoints[1].Stored = true
	require.NoError(t, o.restoreNewest(&cobra.Command{}, nil, store.Proc{}, &s))
	assert.Regexp(t, "310, in the store\nnvmecr: passed over: 500 was written .*, and 310 after it, .*\n", said.String())
}

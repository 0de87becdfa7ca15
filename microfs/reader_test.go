package microfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
)

// TestReaderBesideWriter mounts read-only many times while a writer replaces files. It checks that a
// reader either reads complete files or fails because the media has changed, and that some readers
// succeed.
func TestReaderBesideWriter(t *testing.T) {
	if raceEnabled {
		t.Skip("the two share memory as two hosts share a namespace: without a lock")
	}
	dev := memory(t, 64*nvmf.MiB, 4096)
	ctx := context.Background()
	seg := Segment{Length: 64 * nvmf.MiB}
	require.NoError(t, Format(ctx, dev, seg, FormatOptions{}))
	fs, err := Mount(ctx, dev, seg, Options{})
	require.NoError(t, err)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- rewrite(fs, stop) }()
	good, busy := 0, 0
	// The writer never pauses here, so most readers find that a file they read was replaced.
	for end := time.Now().Add(2 * time.Minute); good+busy < 60 || good <= 5 && time.Now().Before(end); {
		ok, err := readAll(dev, seg)
		require.NoError(t, err)
		if ok {
			good++
		} else {
			busy++
		}
	}
	close(stop)
	require.NoError(t, <-done)
	require.NoError(t, fs.Unmount())
	t.Logf("%d mounts saw a state, %d no quiet moment", good, busy)
	require.Greater(t, good, 5)
}

// TestReaderStartsOver checks a reader whose recovery starts over because the data of the newest log
// image does not verify: the writer has overwritten it. Meanwhile the writer has written another state
// checkpoint, and in one case the whole ring of the log. Mount must fail with an error that MovedOn
// recognizes.
func TestReaderStartsOver(t *testing.T) {
	for what, rounds := range map[string]int{"another state": 0, "another turn": 2000} {
		t.Run(what, func(t *testing.T) { readerStartsOver(t, rounds) })
	}
}

func readerStartsOver(t *testing.T, rounds int) {
	dev := memory(t, 64*nvmf.MiB, 4096)
	seg := Segment{Length: 64 * nvmf.MiB}
	require.NoError(t, Format(t.Context(), dev, seg, FormatOptions{LogPages: minLogPages}))
	fs, err := Mount(t.Context(), dev, seg, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fs.Unmount()) })
	for round := range 3 {
		require.NoError(t, replace(fs, round))
	}
	f, err := fs.Open(RootIno, "new", unix.O_CREAT|unix.O_WRONLY, 0o600)
	require.NoError(t, err)
	data := bytes.Repeat([]byte{0xab}, 52*int(nvmf.KiB))
	_, err = f.WriteAt([][]byte{data}, 0)
	require.NoError(t, err)

	var looks hook
	verified := false
	looks.set(func(n nvmf.Bytes) {
		if verified || n != nvmf.Bytes(len(data)) {
			return
		}
		verified = true
		media := dev.(*memdev.Device).Bytes()
		media[bytes.Index(media, data)]++
		for round := range rounds {
			require.NoError(t, replace(fs, round))
		}
		require.NoError(t, fs.Checkpoint())
	})
	r, err := Mount(t.Context(), hooked{dev, &looks}, seg, Options{ReadOnly: true})
	if err == nil {
		_ = r.Unmount()
	}
	require.True(t, verified)
	require.True(t, MovedOn(err), "%v", err)
	require.NoError(t, f.Close())
}

// rewrite replaces files until stop is closed. All bytes of the file of a round have the number of the
// round as their value.
func rewrite(fs *FS, stop chan struct{}) error {
	for round := 0; ; round++ {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := replace(fs, round); err != nil {
			return err
		}
	}
}

// replace replaces the file of a round.
func replace(fs *FS, round int) error {
	name := fmt.Sprintf("f%d", round%8)
	f, err := fs.Open(RootIno, name+".new", unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	chunk := bytes.Repeat([]byte{byte(round)}, 50000)
	for i := range 10 {
		if _, err := f.WriteAt([][]byte{chunk}, int64(i*len(chunk))); err != nil {
			return err
		}
	}
	return firstError(f.Close(), fs.Rename(RootIno, name+".new", RootIno, name, 0))
}

// readAll mounts read-only and reads all files. ok is false if the mount or a read failed because the
// media has changed.
func readAll(dev nvmf.Device, seg Segment) (ok bool, err error) {
	r, err := Mount(context.Background(), dev, seg, Options{ReadOnly: true})
	if MovedOn(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer r.Unmount()
	for i := range 8 {
		f, err := r.Open(RootIno, fmt.Sprintf("f%d", i), unix.O_RDONLY, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return false, err
		}
		b := make([]byte, 500001)
		n, err := f.ReadAt([][]byte{b}, 0)
		if errors.Is(err, unix.ESTALE) {
			return false, nil
		}
		if err != nil || n != 500000 || len(bytes.Trim(b[:n], string(b[:1]))) != 0 {
			return false, fmt.Errorf("f%d: %d bytes, %v, of more than one round", i, n, err)
		}
	}
	return true, nil
}

// TestReaderReconnects checks that a reader goes on after a lost connection although the writer has gone on, too.
func TestReaderReconnects(t *testing.T) {
	for _, volatile := range []bool{false, true} {
		dev := memory(t, 64*nvmf.MiB, 4096)
		seg := Segment{Length: 64 * nvmf.MiB}
		require.NoError(t, Format(t.Context(), dev, seg, FormatOptions{}))
		w, err := Mount(t.Context(), dev, seg, Options{})
		require.NoError(t, err)
		f, err := w.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
		require.NoError(t, err)
		_, err = f.WriteAt([][]byte{[]byte("hello")}, 0)
		require.NoError(t, err)
		faulty, err := blocktest.NewFaulty(dev)
		require.NoError(t, err)
		if volatile {
			faulty.UseVolatileCache()
		}
		r, err := Mount(t.Context(), faulty, seg, Options{ReadOnly: true})
		require.NoError(t, err)
		g, err := r.Open(RootIno, "f", unix.O_RDONLY, 0)
		require.NoError(t, err)
		for _, name := range []string{"a", "b", "c"} { // more than the two slots of a log page
			require.NoError(t, w.Mkdir(RootIno, name, 0o700))
		}
		faulty.DisconnectAt(nvmf.Read, 1)
		b := make([]byte, 5)
		n, err := g.ReadAt([][]byte{b}, 0)
		require.NoError(t, err, "volatile %v", volatile)
		assert.Equal(t, "hello", string(b[:n]))
		require.NoError(t, firstError(g.Close(), r.Unmount(), f.Close(), w.Unmount()))
	}
}

package nvmet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/provision/nvmet/fakeconfigfs"
	"nvmecr/nvmf/provision/provisiontest"
)

// fixture is a fake target.
type fixture struct {
	tree *fakeconfigfs.Tree
	o    Options
	wrap func(change func() error) error
}

func newFixture(t *testing.T) *fixture {
	root := t.TempDir()
	tree, err := fakeconfigfs.New(root)
	require.NoError(t, err)
	return &fixture{tree: tree, o: Options{Root: root, Dir: filepath.Join(t.TempDir(), "ns"),
		Listen: &nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: "10.0.0.5", Service: "4420"}}}
}

func (f *fixture) Open(*testing.T) provision.Provisioner {
	p := newWith(f.o, f.tree)
	p.wrap = func(change func() error) error {
		if f.wrap != nil {
			return f.wrap(change)
		}
		return change()
	}
	return p
}

func (f *fixture) Connect(id nvmf.TransportID, host string, keys dhchap.Keys) (provisiontest.Volume, error) {
	n, err := f.tree.Connect(id, host, keys)
	if err != nil {
		return nil, err
	}
	return n, nil
}

var errDied = errors.New("died")

func (f *fixture) Interrupt(n int, executed bool) func() bool {
	f.wrap = func(change func() error) error {
		n--
		if n > 0 || n == 0 && executed {
			if err := change(); err != nil {
				return err
			}
		}
		if n > 0 {
			return nil
		}
		return errDied
	}
	return func() bool { return n <= 0 }
}

func (f *fixture) Recover(*testing.T) { f.wrap = nil }

func (f *fixture) Restart(t *testing.T) { require.NoError(t, f.tree.Reboot()) }

func (f *fixture) Leftovers(t *testing.T) []string {
	names, err := f.tree.List("subsystems")
	require.NoError(t, err)
	entries, err := os.ReadDir(f.o.Dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (f *fixture) Traits() provisiontest.Traits {
	return provisiontest.Traits{Unit: blockSize, Forgetful: true}
}

func TestConformance(t *testing.T) {
	t.Parallel() // it mostly waits, since targets delay their answer to hosts with wrong keys
	provisiontest.Run(t, func(t *testing.T) provisiontest.Fixture { return newFixture(t) })
}

var ctx = context.Background()

// TestDevice assigns a whole device to one job after another. Each job must read zeros.
func TestDevice(t *testing.T) {
	f := newFixture(t)
	f.o.Device = filepath.Join(t.TempDir(), "device")
	old := make([]byte, 2*nvmf.MiB)
	for i := range old {
		old[i] = 0xdd
	}
	require.NoError(t, os.WriteFile(f.o.Device, old, 0o600))
	p := f.Open(t)
	_, err := p.Create(ctx, "one", nvmf.MiB)
	require.ErrorIs(t, err, provision.ErrInvalid)
	require.ErrorContains(t, err, "size 2097152")
	for _, job := range []string{"one", "two"} {
		n, err := p.Create(ctx, job, 2*nvmf.MiB)
		require.NoError(t, err)
		assert.Equal(t, provision.Ready, n.State)
		_, err = p.Create(ctx, "three", 2*nvmf.MiB)
		require.ErrorIs(t, err, provision.ErrNoSpace)
		require.ErrorContains(t, err, job, "who has it")
		require.NoError(t, p.Expose(ctx, job, []string{provisiontest.HostA}, nil))
		v, err := f.Connect(n.Targets[0], provisiontest.HostA, dhchap.Keys{})
		require.NoError(t, err)
		got := make([]byte, 2*nvmf.MiB)
		_, err = v.ReadAt(got, 0)
		require.NoError(t, err)
		assert.Equal(t, make([]byte, 2*nvmf.MiB), got, "zeroed")
		_, err = v.WriteAt(old, 0)
		require.NoError(t, err)
		require.NoError(t, v.Close())
		f.Restart(t)
		_, err = p.Create(ctx, job, 2*nvmf.MiB)
		require.NoError(t, err)
		got, err = os.ReadFile(f.o.Device)
		require.NoError(t, err)
		assert.Equal(t, old, got, "the data survives a reboot")
		require.NoError(t, p.Delete(ctx, job))
	}
	assert.FileExists(t, f.o.Device)
}

// TestStrange checks a job that is served with another prefix, or from another directory,
// than those of the provisioner. The provisioner neither serves it again nor deletes it.
func TestStrange(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"prefix":    func(f *fixture) { f.o.Base = "nqn.2014-08.org.example:other" },
		"directory": func(f *fixture) { f.o.Dir += "2" },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			p := f.Open(t)
			n, err := p.Create(ctx, "melt", nvmf.MiB)
			require.NoError(t, err)
			require.NoError(t, p.Expose(ctx, "melt", []string{provisiontest.HostA}, nil))
			v, err := f.Connect(n.Targets[0], provisiontest.HostA, dhchap.Keys{})
			require.NoError(t, err)
			defer v.Close()
			link := filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Symlink(f.o.Dir, link))
			change(f)
			other := f.Open(t)
			_, err = other.Create(ctx, "melt", nvmf.MiB)
			require.ErrorIs(t, err, provision.ErrInvalid)
			require.ErrorContains(t, err, provision.NQN(provision.Base, "melt"))
			require.ErrorIs(t, other.Delete(ctx, "melt"), provision.ErrInvalid)
			assert.True(t, connected(v))
			_, err = other.Create(ctx, "another", nvmf.MiB)
			require.NoError(t, err)
			require.NoError(t, other.Delete(ctx, "another"))
			f.o.Base, f.o.Dir = "", link
			require.NoError(t, f.Open(t).Delete(ctx, "melt"), "a provisioner with the same directory")
			_, err = os.Stat(filepath.Join(link, liveName+"melt"))
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

// TestAtOnce creates a second job between two changes of the creation of the first one,
// when the port does not exist yet.
func TestAtOnce(t *testing.T) {
	for at := 1; ; at++ {
		f := newFixture(t)
		p, n := f.Open(t).(*Provisioner), 0
		p.wrap = func(change func() error) error {
			if n++; n == at {
				_, err := newWith(f.o, f.tree).Create(ctx, "two", nvmf.MiB)
				require.NoError(t, err)
			}
			return change()
		}
		_, err := p.Create(ctx, "one", nvmf.MiB)
		require.NoError(t, err, "change %d", at)
		if n < at {
			assert.Greater(t, at, 10, "steps")
			return
		}
		list, err := p.List(ctx)
		require.NoError(t, err)
		require.Len(t, list, 2)
		for _, job := range list {
			assert.Equal(t, provision.Ready, job.State)
		}
	}
}

// TestPowerLoss checks that calls sync the directory after they have changed the state of a
// job, for namespaces on files and on devices.
func TestPowerLoss(t *testing.T) {
	for name, device := range map[string]string{"file": "", "device": filepath.Join(t.TempDir(), "device")} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if f.o.Device = device; device != "" {
				require.NoError(t, os.WriteFile(device, make([]byte, nvmf.MiB), 0o600))
			}
			p := f.Open(t).(*Provisioner)
			var durable []string
			p.sync = func(dir string) error {
				require.Equal(t, f.o.Dir, dir)
				durable = f.Leftovers(t)
				return syncDir(dir)
			}
			_, err := p.Create(ctx, "melt", nvmf.MiB)
			require.NoError(t, err)
			assert.Contains(t, durable, liveName+"melt")
			require.NoError(t, p.Expose(ctx, "melt", []string{provisiontest.HostA}, keysOf(provisiontest.HostA)))
			assert.Contains(t, durable, lockedName+"melt")
			require.NoError(t, p.Delete(ctx, "melt"))
			assert.Contains(t, durable, freedName+"melt")
		})
	}
}

// TestDeviceNames checks that a device in use is recognized by another name, and that
// Create waits for the lock of other programs before it takes a device.
func TestDeviceNames(t *testing.T) {
	t.Parallel() // it waits for another program
	f := newFixture(t)
	dir := t.TempDir()
	device, other := filepath.Join(dir, "device"), filepath.Join(dir, "by-id")
	require.NoError(t, os.WriteFile(device, make([]byte, nvmf.MiB), 0o600))
	require.NoError(t, os.Symlink(device, other))
	f.o.Device = device
	_, err := f.Open(t).Create(ctx, "one", nvmf.MiB)
	require.NoError(t, err)
	f.o.Device = other
	p := f.Open(t)
	_, err = p.Create(ctx, "two", nvmf.MiB)
	require.ErrorIs(t, err, provision.ErrNoSpace)
	require.ErrorContains(t, err, "nvmecr:one")
	require.NoError(t, p.Delete(ctx, "one"))

	const ns = "subsystems/nqn.2014-08.org.example:theirs/namespaces/7"
	require.NoError(t, f.tree.Mkdir("subsystems/nqn.2014-08.org.example:theirs"))
	require.NoError(t, f.tree.Mkdir(ns))
	require.NoError(t, f.tree.Write(ns+"/device_path", device))
	_, err = p.Create(ctx, "two", nvmf.MiB)
	require.ErrorIs(t, err, provision.ErrNoSpace)
	require.ErrorContains(t, err, "namespace 7 of nqn.2014-08.org.example:theirs")
	require.NoError(t, f.tree.Rmdir(ns))

	lock, err := os.Open(f.o.Dir)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	_, err = p.Create(ctx, "two", nvmf.MiB)
	require.ErrorContains(t, err, "another program")
	require.NoError(t, lock.Close())
	_, err = p.Create(ctx, "two", nvmf.MiB)
	require.NoError(t, err)
}

// TestSameDevice checks that two device nodes with the same number count as one device.
func TestSameDevice(t *testing.T) {
	dir := t.TempDir()
	for name, minor := range map[string]uint32{"a": 3, "b": 3, "c": 4} {
		if err := unix.Mknod(filepath.Join(dir, name), unix.S_IFBLK|0o600, int(unix.Mkdev(7, minor))); err != nil {
			t.Skipf("cannot make nodes of devices: %v", err)
		}
	}
	a, err := os.Stat(filepath.Join(dir, "a"))
	require.NoError(t, err)
	assert.True(t, sameDevice(a, filepath.Join(dir, "b")))
	assert.False(t, sameDevice(a, filepath.Join(dir, "c")))
	assert.False(t, sameDevice(a, dir))
	assert.False(t, sameDevice(a, "(null)"))
}

// TestPorts checks that an existing port is used, whichever program has created it.
func TestPorts(t *testing.T) {
	f := newFixture(t)
	f.o.Listen = nil
	p := f.Open(t)
	_, err := p.Create(ctx, "melt", nvmf.MiB)
	require.ErrorContains(t, err, "?listen=ADDRESS:PORT")
	left, err := os.ReadDir(f.o.Dir)
	require.NoError(t, err)
	assert.Empty(t, left, "no image is left behind")
	require.NoError(t, f.tree.Mkdir("ports/7"))
	for name, value := range map[string]string{"traddr": "fd00::5", "trsvcid": "4421", "adrfam": "ipv6", "trtype": "tcp"} {
		require.NoError(t, f.tree.Write("ports/7/addr_"+name, value))
	}
	n, err := p.Create(ctx, "melt", nvmf.MiB)
	require.NoError(t, err)
	assert.Equal(t, "trtype:TCP adrfam:IPv6 traddr:fd00::5 trsvcid:4421 subnqn:"+provision.Base+":melt ns:1", n.Targets[0].String())

	require.NoError(t, os.Chmod(f.o.Dir, 0o770))
	_, err = p.List(ctx)
	require.ErrorContains(t, err, "chmod go-w "+f.o.Dir)

	f.o.Dir = "relative"
	_, err = f.Open(t).List(ctx)
	require.ErrorContains(t, err, "?dir=")
	f.o.Root = filepath.Join(t.TempDir(), "none")
	_, err = New(f.o).List(ctx)
	require.ErrorContains(t, err, "modprobe nvmet")
}

// TestDamaged checks that a job whose image is a dangling link is reported as damaged, and
// that other jobs are still listed.
func TestDamaged(t *testing.T) {
	f := newFixture(t)
	p := f.Open(t)
	_, err := p.Create(ctx, "good", nvmf.MiB)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(filepath.Join(t.TempDir(), "gone"), filepath.Join(f.o.Dir, liveName+"bad")))
	list, err := p.List(ctx)
	require.NoError(t, err)
	require.Len(t, list, 2)
	assert.Equal(t, provision.Damaged, list[0].State)
	assert.Contains(t, list[0].Problem, "job bad")
	assert.Equal(t, provision.Ready, list[1].State)
	require.NoError(t, p.Delete(ctx, "bad"))
	list, err = p.List(ctx)
	require.NoError(t, err)
	assert.Len(t, list, 1)
}

// TestTree tests the implementation of the configfs tree on an ordinary directory.
func TestTree(t *testing.T) {
	d := directory(t.TempDir())
	require.NoError(t, d.Mkdir("a"))
	require.NoError(t, os.WriteFile(d.at("a/attr"), []byte("0\n"), 0o600))
	require.NoError(t, d.Write("a/attr", "1"))
	v, err := d.Read("a/attr")
	require.NoError(t, err)
	assert.Equal(t, "1", v)
	require.Error(t, d.Write("a/none", "1"), "Write must not create an attribute")
	require.NoError(t, d.Link("a", "b"))
	require.ErrorContains(t, d.Rmdir("b"), "rmdir")
	require.ErrorContains(t, d.Unlink("a"), "unlink")
	names, err := d.List("")
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b"}, names)
	require.NoError(t, d.Unlink("b"))
	require.NoError(t, os.Remove(d.at("a/attr")))
	require.NoError(t, d.Rmdir("a"))
}

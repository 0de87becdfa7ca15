package spdk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/jsonrpc"
	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
)

// zeroingName followed by a job is the name of a volume without clusters, the mark of a
// deletion. It exists on the device from before the deletion of the job's volume until
// the deletion has returned. SPDK first removes the metadata of a volume, and then
// zeroes its clusters. A target that dies in between leaves a mark without a volume,
// and free clusters with data.
const zeroingName = "nvmecr-zeroing:"

// freeSpace replaces the job in the name of the volume that consists of all free space,
// and in the name of its mark. No job's name has a colon.
const freeSpace = ":free"

// session returns a provisioner that talks only to the target process that answers its
// first call. If the target restarts, later calls fail. So knowledge about free
// clusters stays valid.
func (p *Provisioner) session() (*Provisioner, func()) {
	s := &Provisioner{o: p.o, rpc: jsonrpc.NewClient(p.o.Socket).Once()}
	return s, func() { _ = s.rpc.Close() } // errors are irrelevant at this point
}

// failed reports whether SPDK has answered a call with an error number.
func failed(err error, with unix.Errno) bool {
	var e *jsonrpc.Error
	return errors.As(err, &e) && e.Code == -int64(with)
}

// makeVolume creates a volume. A volume of size 0 has no clusters.
func (p *Provisioner) makeVolume(ctx context.Context, s *store, name string, size nvmf.Bytes) error {
	return p.call(ctx, "bdev_lvol_create", object{
		"uuid": s.UUID, "lvol_name": name, "size_in_mib": uint64(max(size, nvmf.MiB) / nvmf.MiB),
		"thin_provision": size == 0, "clear_method": "write_zeroes",
	}, nil)
}

// deleteVolume deletes the freed volume of a job. It waits until the device has zeroed
// the volume.
func (p *Provisioner) deleteVolume(ctx context.Context, v *view, job string) error {
	if err := p.mark(ctx, v, job); err != nil {
		return err
	}
	deleted, err := p.remove(ctx, v.freed[job].Name)
	if err != nil {
		return err
	}
	if !deleted {
		return p.settle(ctx, job, true) // another program is deleting the volume, or has deleted it
	}
	return p.unmark(ctx, v.store, job)
}

// mark creates the mark of a job, which takes a page of the store's metadata.
func (p *Provisioner) mark(ctx context.Context, v *view, job string) error {
	if v.zeroing[job] != nil {
		return nil
	}
	err := p.makeVolume(ctx, v.store, zeroingName+job, 0)
	if err == nil || failed(err, unix.EEXIST) {
		return nil
	}
	return fmt.Errorf("store %s has no space to note that a volume is being zeroed: delete another one first, with rpc.py bdev_lvol_delete: %w", v.store.Name, err)
}

// remove deletes a volume, and reports whether there was one. It returns false for a
// volume that another program is deleting, for which SPDK returns an unusual error.
func (p *Provisioner) remove(ctx context.Context, name string) (bool, error) {
	err := p.explain(p.rpc.Call(ctx, "bdev_lvol_delete", object{"name": name}, nil))
	var e *jsonrpc.Error
	if errors.As(err, &e) && e.Code == jsonrpc.CodeInternal && e.Message == "Invalid argument" {
		if gone := p.call(ctx, "bdev_get_bdevs", object{"name": name}, nil); failed(gone, unix.ENODEV) {
			err = gone
		}
	}
	if failed(err, unix.ENODEV) {
		return false, nil
	}
	return err == nil, err
}

// unmark removes the mark of a job, after the clusters of its volume were zeroed.
func (p *Provisioner) unmark(ctx context.Context, s *store, job string) error {
	_, err := p.remove(ctx, s.Name+"/"+zeroingName+job)
	return err
}

// settle processes all marks. A mark without a volume means that free clusters may have
// data, unless the volume is still being deleted. settle waits for the deletion of the
// volume of the job awaited. seen says that this target process was running when that
// volume still existed.
//
// Then settle creates a volume of all free space, and deletes it like other freed
// volumes. The mark of this volume replaces the earlier marks. When settle returns, the
// volume is deleted and the free space is zeroed.
func (p *Provisioner) settle(ctx context.Context, awaited string, seen bool) error {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		v, err := p.look(ctx)
		if err != nil {
			return err
		}
		dead, alive, err := p.unsettled(ctx, v, awaited, seen)
		if err != nil {
			return err
		}
		switch {
		case alive != "":
			seen = true
		case len(dead) == 0 && v.zeroing[freeSpace] == nil:
			return nil
		default:
			done, err := p.zeroFree(ctx, v, dead)
			if done || err != nil {
				return err
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unsettled returns the jobs whose volumes were not deleted completely by a target that
// has died. It also returns awaited if the target is still deleting that job's volume.
func (p *Provisioner) unsettled(ctx context.Context, v *view, awaited string, seen bool) (dead []string, alive string, err error) {
	for _, job := range slices.Sorted(maps.Keys(v.zeroing)) {
		if v.freed[job] != nil || job == freeSpace {
			continue
		}
		deleting, err := p.taken(ctx, v.store, freedName+job)
		switch {
		case err != nil:
			return nil, "", err
		case deleting && job == awaited:
			alive = job
		case deleting:
		case job == awaited && seen && v.accounted():
			err = p.unmark(ctx, v.store, job)
		case job == awaited && seen: // the mark has to stay; see the end of zeroFree
		default:
			dead = append(dead, job)
		}
		if err != nil {
			return nil, "", err
		}
	}
	return dead, alive, nil
}

// taken reports whether a volume has this name, even one that is being deleted and is
// no longer a block device. It tries to create a volume of this name that is larger
// than the store, and looks at the error.
func (p *Provisioner) taken(ctx context.Context, s *store, name string) (bool, error) {
	err := p.makeVolume(ctx, s, name, nvmf.Bytes(s.Clusters+1)*nvmf.Bytes(s.ClusterSize)+nvmf.MiB)
	var answer *jsonrpc.Error
	switch {
	case failed(err, unix.EEXIST):
		return true, nil
	case errors.As(err, &answer):
		return false, nil
	case err == nil:
		return false, fmt.Errorf("store %s has made a volume %s that is larger than the store: delete it", s.Name, name)
	}
	return false, err
}

// zeroFree creates a volume of all free space and deletes it. The marks of the given
// jobs are then not needed any more. It returns false if it has to be called again.
func (p *Provisioner) zeroFree(ctx context.Context, v *view, jobs []string) (bool, error) {
	if err := p.mark(ctx, v, freeSpace); err != nil {
		return false, err
	}
	if v.freed[freeSpace] == nil {
		deleting, err := p.taken(ctx, v.store, freedName+freeSpace)
		if deleting || err != nil {
			return false, err // another call is deleting it
		}
	}
	if free := v.store.free(); v.freed[freeSpace] == nil && free > 0 {
		err := p.makeVolume(ctx, v.store, freedName+freeSpace, free)
		if failed(err, unix.EEXIST) {
			return false, nil // another call has created the volume, and deletes it
		}
		if err != nil {
			return false, fmt.Errorf("the target has ended while it zeroed a volume, and all %s that are free have to be zeroed first: %w", free, err)
		}
		if v, err = p.look(ctx); err != nil {
			return false, err
		}
	}
	all := v.store.FreeClusters == 0
	// The clusters of a volume that could not be zeroed become free only when the
	// target ends. In that case the marks have to stay.
	sure := all && v.accounted()
	for _, job := range jobs {
		if !sure {
			break
		}
		if err := p.unmark(ctx, v.store, job); err != nil {
			return false, err
		}
	}
	if l := v.freed[freeSpace]; l != nil {
		if deleted, err := p.remove(ctx, l.Name); err != nil || !deleted {
			return false, err
		}
	}
	if sure {
		return true, p.unmark(ctx, v.store, freeSpace)
	}
	return all, nil
}

// checkClusters returns an error if volumes of whole MiB cannot take all free clusters,
// so that not all of them could be zeroed.
func (s *store) checkClusters() error {
	if c := nvmf.Bytes(s.ClusterSize); c < nvmf.MiB {
		return fmt.Errorf("%w: store %s has clusters of %s, less than 1 MiB: make one with rpc.py bdev_lvol_create_lvstore --cluster-sz 1048576 or more", provision.ErrUnsupported, s.Name, c)
	}
	return nil
}

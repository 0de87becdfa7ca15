package tcp

import (
	"context"
	"fmt"
	"time"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// Discover returns the log of the discovery controller at id's address. id.SubNQN
// and id.NSID are not used.
func Discover(ctx context.Context, id nvmf.TransportID, o Options) ([]nvme.DiscoveryEntry, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	entries, err := discover(ctx, id, &o)
	if err != nil {
		return nil, fmt.Errorf("discovery at %s: %w", id.HostPort(), err)
	}
	return entries, nil
}

const (
	// maxRecords limits the number of records in a discovery log.
	maxRecords = 4096
	// maxDiscovery limits the time for reading the log, however slowly a target answers.
	maxDiscovery = time.Minute
	// discoveryTries is how often a log is read that changes while it is read.
	discoveryTries = 5
)

func discover(ctx context.Context, id nvmf.TransportID, o *Options) ([]nvme.DiscoveryEntry, error) {
	ctl, err := associate(ctx, id, o, nvme.DiscoveryNQN)
	if err != nil {
		return nil, err
	}
	defer ctl.close()
	ctx, cancel := context.WithTimeout(ctx, maxDiscovery)
	defer cancel()
	stop := context.AfterFunc(ctx, ctl.conn.kill)
	defer stop()
	entries, err := ctl.discoveryLog()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return entries, err
}

// discoveryLog reads the log, again if its generation has changed meanwhile.
func (ctl *controller) discoveryLog() ([]nvme.DiscoveryEntry, error) {
	for range discoveryTries {
		before, err := ctl.discoveryHeader()
		if err != nil {
			return nil, err
		}
		entries, err := ctl.discoveryEntries(before.Records())
		if err != nil {
			return nil, err
		}
		after, err := ctl.discoveryHeader()
		if err != nil {
			return nil, err
		}
		if before.Generation() == after.Generation() {
			return entries, nil
		}
	}
	return nil, fmt.Errorf("the log changed %d times while it was read", discoveryTries)
}

func (ctl *controller) discoveryHeader() (*nvme.DiscoveryHeader, error) {
	var h nvme.DiscoveryHeader
	if err := ctl.logPage(nvme.LogDiscovery, 0, h[:]); err != nil {
		return nil, err
	}
	if h.RecordFormat() != 0 {
		return nil, fmt.Errorf("the log has record format %d: %w", h.RecordFormat(), nvmf.ErrUnsupported)
	}
	if h.Records() > maxRecords {
		return nil, fmt.Errorf("the log claims %d records, at most %d are read: %w", h.Records(), maxRecords, nvmf.ErrUnsupported)
	}
	return &h, nil
}

// discoveryEntries reads the entries one by one, since 1 KiB is within the transfer
// limit of any controller.
func (ctl *controller) discoveryEntries(n uint64) ([]nvme.DiscoveryEntry, error) {
	entries := make([]nvme.DiscoveryEntry, n)
	for i := range entries {
		at := nvme.DiscoveryHeaderSize + uint64(i)*nvme.DiscoveryEntrySize
		if err := ctl.logPage(nvme.LogDiscovery, at, entries[i][:]); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

func (ctl *controller) logPage(lid uint8, offset uint64, data []byte) error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminGetLogPage, 0, 0)
	sqe.SetLogPage(lid, offset, uint32(len(data)))
	_, err := ctl.exec(fmt.Sprintf("Get Log Page %#02x", lid), &sqe, data)
	return err
}

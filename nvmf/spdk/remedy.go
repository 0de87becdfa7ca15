//go:build spdk

package spdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"nvmecr/nvmf"
)

// silent says more of what failed since it began, where that is for want of an answer
// in the time that each step has, or that a caller waits for.
func silent(ctx context.Context, err error, began time.Time, each time.Duration) error {
	after := time.Since(began).Round(time.Millisecond)
	lost := errors.Is(err, nvmf.ErrUnreachable) || errors.Is(err, nvmf.ErrConnectionLost)
	if lost && (ctx.Err() != nil || after >= each) {
		err = fmt.Errorf("%w; after %s the target has not answered: see whether it is stopped, overloaded or cut off, "+
			"or give it more time with --timeout", err, after)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// sysfs is where the kernel tells of devices and of huge pages.
const sysfs = "/sys"

// hugeRemedy says what to do where SPDK has found no huge pages for so much
// memory, ready to be put behind an error. Those of 2 MiB are looked at.
func hugeRemedy(sys string, memory nvmf.Bytes) string {
	text, _ := os.ReadFile(filepath.Join(sys, "kernel/mm/hugepages/hugepages-2048kB/free_hugepages"))
	pages, _ := strconv.Atoi(strings.TrimSpace(string(text))) // 0: there are none
	if free := nvmf.Bytes(pages) * 2 * nvmf.MiB; free < memory {
		return fmt.Sprintf("; RDMA and PCIe take huge pages, %s for each process, and %s are free: "+
			"have root set vm.nr_hugepages, or run SPDK's scripts/setup.sh", memory, free)
	}
	return "; RDMA and PCIe take huge pages, and there are enough: have root mount a hugetlbfs that this user may write to, " +
		"as SPDK's scripts/setup.sh does"
}

// pciRemedy says why a local device may not be had, and what to do, ready to be
// put behind an error; or it is empty.
func pciRemedy(sys, address string) string {
	address = fullAddress(address)
	device := filepath.Join(sys, "bus/pci/devices", address)
	class, err := os.ReadFile(filepath.Join(device, "class"))
	switch {
	case err != nil:
		return "; there is no PCI device " + address
	case !strings.HasPrefix(string(class), "0x0108"):
		return fmt.Sprintf("; PCI device %s is no NVMe drive", address)
	}
	link, _ := os.Readlink(filepath.Join(device, "driver")) // "": it has none
	switch driver := filepath.Base(link); driver {
	case "vfio-pci":
		return ""
	case "uio_pci_generic", "igb_uio":
		if os.Geteuid() != 0 {
			return fmt.Sprintf("; with the kernel's driver %s, which it has, only root can use it", driver)
		}
		return ""
	case ".":
		return "; it has no driver in the kernel: have root give it to vfio-pci or uio_pci_generic, as SPDK's scripts/setup.sh does"
	default:
		return fmt.Sprintf("; it belongs to the kernel's driver %s: have root take it away from the file systems and programs that use it, "+
			"and give it to vfio-pci or uio_pci_generic, as SPDK's scripts/setup.sh does", driver)
	}
}

// lockFile is what the files are called, with the address of a drive behind it,
// by which SPDK's programs tell each other that it is taken. One that is killed
// leaves it, and no other user may open it.
const lockFile = "/var/tmp/spdk_pci_lock_"

// lockRemedy says whose lock file it is that cannot be opened, ready to be put
// behind an error.
func lockRemedy(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	owner := "another user"
	if stat, ok := info.Sys().(*syscall.Stat_t); ok { // by number: libc would load libraries for a name
		owner = fmt.Sprintf("user %d", stat.Uid)
	}
	return fmt.Sprintf("; %s belongs to %s, who uses the drive or was killed with it: "+
		"if nobody uses it any more have them or root remove that file", path, owner)
}

// fullAddress is the address of a PCI device as the kernel writes it.
func fullAddress(address string) string {
	if strings.Count(address, ":") == 1 {
		address = "0000:" + address
	}
	return strings.ToLower(address)
}

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

// silent adds to err that the target did not answer, if err is a lost connection and
// either ctx has ended or the time limit each of a step has passed since began.
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

// sysfs is the directory in which the kernel describes devices and huge pages.
const sysfs = "/sys"

// hugeRemedy returns advice to be appended to an error when SPDK lacks huge pages for
// the given memory. It looks at pages of 2 MiB.
func hugeRemedy(sys string, memory nvmf.Bytes) string {
	text, _ := os.ReadFile(filepath.Join(sys, "kernel/mm/hugepages/hugepages-2048kB/free_hugepages"))
	pages, _ := strconv.Atoi(strings.TrimSpace(string(text))) // 0 if there are none
	if free := nvmf.Bytes(pages) * 2 * nvmf.MiB; free < memory {
		return fmt.Sprintf("; RDMA and PCIe take huge pages, %s for each process, and %s are free: "+
			"have root set vm.nr_hugepages, or run SPDK's scripts/setup.sh", memory, free)
	}
	return "; RDMA and PCIe take huge pages, and there are enough: have root mount a hugetlbfs that this user may write to, " +
		"as SPDK's scripts/setup.sh does"
}

// pciRemedy returns why a local device may not be usable, and what to do, to be
// appended to an error. It may be empty.
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
	link, _ := os.Readlink(filepath.Join(device, "driver")) // empty if the device has no driver
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

// lockFile is the prefix of the lock files by which programs that use SPDK claim a
// drive. The drive's address follows. A program that is killed leaves the file, and
// other users cannot open it.
const lockFile = "/var/tmp/spdk_pci_lock_"

// lockRemedy returns the owner of a lock file that cannot be opened, to be appended to
// an error.
func lockRemedy(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	owner := "another user"
	if stat, ok := info.Sys().(*syscall.Stat_t); ok { // the number, since libc would load libraries to get the name
		owner = fmt.Sprintf("user %d", stat.Uid)
	}
	return fmt.Sprintf("; %s belongs to %s, who uses the drive or was killed with it: "+
		"if nobody uses it any more have them or root remove that file", path, owner)
}

// fullAddress returns the address of a PCI device in the kernel's form.
func fullAddress(address string) string {
	if strings.Count(address, ":") == 1 {
		address = "0000:" + address
	}
	return strings.ToLower(address)
}

//go:build spdk

package spdk

import (
	"maps"
	"regexp"
	"sync"

	"nvmecr/internal/ownfd"
)

// devices are the descriptors by which SPDK reaches local devices and RDMA ones.
var devices deviceTable

// A deviceTable records which connection such a descriptor belongs to: the one in whose
// step SPDK has opened it. SPDK and its libraries do not report these descriptors. They
// have some of them open for a moment only, share some among connections, and close
// shared ones with the last connection. So the table compares the open descriptors before
// and after each step. Steps run one at a time: after concurrent steps it would not be
// known which connection a new descriptor belongs to, nor whether it stays open.
type deviceTable struct {
	mu     sync.Mutex
	shared deviceSet // descriptors of ended connections, which others may use
}

// A deviceSet has the names of open files by descriptor.
type deviceSet map[int]string

// around runs a step of a connection that may open and close descriptors of devices. own
// has the descriptors of the connection afterwards. Descriptors that the step has not
// opened, and that belong to no connection, do not change.
func (t *deviceTable) around(own *deviceSet, step func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	others := descriptors(false)
	forget := func(set deviceSet) {
		for fd, what := range set {
			if others[fd] == what {
				delete(others, fd)
			}
			ownfd.Drop(fd) // a held descriptor cannot be closed, not even by SPDK
		}
	}
	forget(*own)
	forget(t.shared)
	step()
	now := deviceSet(descriptors(false))
	maps.DeleteFunc(now, func(fd int, what string) bool { return others[fd] == what || !ofDevice(what) })
	for fd := range now {
		claim(fd)
	}
	maps.DeleteFunc(t.shared, func(fd int, what string) bool { return now[fd] != what })
	maps.DeleteFunc(now, func(fd int, what string) bool { return t.shared[fd] == what })
	*own = now
}

// leave takes over the remaining descriptors of a connection that has ended.
func (t *deviceTable) leave(own *deviceSet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared == nil {
		t.shared = deviceSet{}
	}
	maps.Copy(t.shared, *own)
	*own = nil
}

// deviceFile matches the names of device files, and of the lock files of devices in use.
// Closing any descriptor of a lock file releases its lock.
var deviceFile = regexp.MustCompile(`^(/dev/vfio/|/dev/uio\d|/dev/infiniband/|/var/tmp/spdk_pci_lock_` +
	`|/sys/.*/(config|resource\d*(_wc)?)$|anon_inode:\[(vfio-device|infinibandevent)\])`)

func ofDevice(what string) bool { return deviceFile.MatchString(what) }

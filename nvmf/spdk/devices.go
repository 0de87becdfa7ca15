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

// A deviceTable tells whose such descriptors are: a connection's, if SPDK has opened
// them in a step with which it begins or ends. SPDK and its libraries do not say which,
// have some for a moment only, share some among connections, and close those that the
// last one leaves, so they are looked for behind each step, and one step is taken at a
// time: behind several at once nobody could tell whose they are, nor whether
// they are to stay.
type deviceTable struct {
	mu     sync.Mutex
	shared deviceSet // what connections have left that others may use
}

// A deviceSet is what descriptors are, by number.
type deviceSet map[int]string

// around runs a step of a connection that may open descriptors of devices, which own
// has then, and close them. What others had before is left alone.
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

// leave takes what is left of a connection that has ended.
func (t *deviceTable) leave(own *deviceSet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared == nil {
		t.shared = deviceSet{}
	}
	maps.Copy(t.shared, *own)
	*own = nil
}

// deviceFile is what a descriptor that leads to a device is called, or the file whose
// lock says that it is taken: closing that, by any number, gives the lock up.
var deviceFile = regexp.MustCompile(`^(/dev/vfio/|/dev/uio\d|/dev/infiniband/|/var/tmp/spdk_pci_lock_` +
	`|/sys/.*/(config|resource\d*(_wc)?)$|anon_inode:\[(vfio-device|infinibandevent)\])`)

func ofDevice(what string) bool { return deviceFile.MatchString(what) }

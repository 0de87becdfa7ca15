package initiator

import (
	"time"

	"github.com/google/uuid"

	"nvmecr/nvmf/nvme"
)

// Default values of the options of all initiators.
const (
	ConnectTimeout = 10 * time.Second
	CommandTimeout = 30 * time.Second
	KeepAlive      = 30 * time.Second
)

// Host replaces missing parts of a host's identity: a zero identifier by a random one,
// and an empty NQN by one derived from the identifier.
func Host(id uuid.UUID, nqn string) (uuid.UUID, string) {
	if id == uuid.Nil {
		id = uuid.New()
	}
	if nqn == "" {
		nqn = nvme.UUIDPrefix + id.String()
	}
	return id, nqn
}

// QueueDepth returns the queue depth for the value of an option. It returns 128 for
// values below 1 or above 1024.
func QueueDepth(option int) int {
	if option <= 0 || option > 1024 {
		return 128
	}
	return option
}

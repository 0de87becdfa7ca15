package initiator

import (
	"time"

	"github.com/google/uuid"

	"nvmecr/nvmf/nvme"
)

// Defaults of the options that all initiators have.
const (
	ConnectTimeout = 10 * time.Second
	CommandTimeout = 30 * time.Second
	KeepAlive      = 30 * time.Second
)

// Host fills in what is missing of a host's identity: a random host identifier, and
// a host NQN made of it.
func Host(id uuid.UUID, nqn string) (uuid.UUID, string) {
	if id == uuid.Nil {
		id = uuid.New()
	}
	if nqn == "" {
		nqn = nvme.UUIDPrefix + id.String()
	}
	return id, nqn
}

// QueueDepth returns the queue depth for an option of that value: 128 if the option is
// not set, or is more than 1024.
func QueueDepth(option int) int {
	if option <= 0 || option > 1024 {
		return 128
	}
	return option
}

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

// Host completes who a host is: a random identifier, and a name made of it.
func Host(id uuid.UUID, nqn string) (uuid.UUID, string) {
	if id == uuid.Nil {
		id = uuid.New()
	}
	if nqn == "" {
		nqn = nvme.UUIDPrefix + id.String()
	}
	return id, nqn
}

// QueueDepth is how many commands a queue may have in flight where an option
// asks for so many: 128 if it does not, or for more than a queue takes.
func QueueDepth(option int) int {
	if option <= 0 || option > 1024 {
		return 128
	}
	return option
}

package config

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// maxNQN is the longest NQN (Base Specification 2.0, section 4.5).
const maxNQN = 223

// hostSpace is the name space of host UUIDs made from machine and user.
var hostSpace = uuid.MustParse("6f0e2b4e-3c1c-5d43-9f7e-0d5a7c1a9b21")

// Host returns the host NQN: the setting, or that of /etc/nvme/hostnqn, or one derived from the ids of machine and
// user, which stays the same and differs between users.
func (c *Config) Host() string {
	if c.HostNQN != "" {
		return c.HostNQN
	}
	return hostNQN("/etc", os.Getuid())
}

func hostNQN(etc string, uid int) string {
	if b, err := os.ReadFile(etc + "/nvme/hostnqn"); err == nil {
		if nqn := strings.TrimSpace(string(b)); nqn != "" && CheckNQN(nqn) == nil {
			return nqn
		}
	}
	machine, err := os.ReadFile(etc + "/machine-id")
	if err != nil || strings.TrimSpace(string(machine)) == "" {
		// Without a machine id the host name is the most permanent identity.
		name, _ := os.Hostname()
		machine = []byte(name)
	}
	id := uuid.NewSHA1(hostSpace, []byte(strings.TrimSpace(string(machine))+" "+strconv.Itoa(uid)))
	return "nqn.2014-08.org.nvmexpress:uuid:" + id.String()
}

// CheckNQN returns an error unless nqn is empty or has the form of an NQN.
func CheckNQN(nqn string) error {
	if nqn == "" {
		return nil
	}
	if !strings.HasPrefix(nqn, "nqn.") || len(nqn) > maxNQN || strings.ContainsAny(nqn, " \t\n\x00") {
		return fmt.Errorf("%q is not an NQN such as nqn.2014-08.org.nvmexpress:uuid:..., at most %d bytes", nqn, maxNQN)
	}
	return nil
}

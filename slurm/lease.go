package slurm

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"nvmecr/internal/crc64"
	"nvmecr/nvmf"
)

// A Lease records the namespaces of a job, or of several jobs of one name that run one after the other.
type Lease struct {
	Name      string       `json:"name"` // also the name of its namespaces
	User      uint32       `json:"user"`
	Request   Request      `json:"request"`
	Job       uint32       `json:"job"`      // id of the last job
	Restarts  uint32       `json:"restarts"` // restart count of that job
	Nodes     string       `json:"nodes"`    // nodes of that job
	Ranks     int          `json:"ranks"`
	Targets   []LeasedSpot `json:"targets"`
	Abandoned []string     `json:"left,omitempty"` // targets that failed before the job had space; they may still have a namespace of it
	Size      nvmf.Bytes   `json:"size"`           // of each namespace
	Mapping   string       `json:"mapping"`        // mapping of ranks to targets, for the first start
	Reused    bool         `json:"reused"`         // the last start is not the first one
	HostNQN   string       `json:"hostnqn"`        // host NQN of all hosts of the job
	Key       string       `json:"key"`            // DH-HMAC-CHAP key of these hosts, for the last start
	Ready     bool         `json:"ready"`          // all namespaces existed once, so they may have data
	Started   time.Time    `json:"started"`        // time of the last start
	Ended     *time.Time   `json:"ended,omitempty"`
	Freeing   bool         `json:"freeing,omitempty"` // some namespaces may be gone
}

// A LeasedSpot is a namespace on a target.
type LeasedSpot struct {
	Target    string `json:"target"`    // by its name in the inventory
	Namespace string `json:"namespace"` // in the form of --target; "" until it is created
}

// on returns the targets that may have a namespace of the lease.
func (l *Lease) on() []string {
	names := slices.Clone(l.Abandoned)
	for _, spot := range l.Targets {
		names = append(names, spot.Target)
	}
	return names
}

// file is the content of a lease's file. Version and checksum come first, to recognise a later version, and a truncated
// file.
type file struct {
	Format  string          `json:"format"`
	Version int             `json:"version"`
	CRC64   string          `json:"crc64"` // of the bytes of Lease
	Lease   json.RawMessage `json:"lease"`
}

const (
	format  = "nvmecr-lease"
	version = 1
)

// ErrLease is wrapped by errors about a lease that cannot be read.
var ErrLease = errors.New("not a lease that can be read")

func encode(l *Lease) ([]byte, error) {
	body, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(file{format, version, fmt.Sprintf("%016x", crc64.Checksum(body)), body})
	return append(b, '\n'), err
}

func decode(b []byte) (*Lease, error) {
	var f file
	switch err := json.Unmarshal(b, &f); {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrLease, err)
	case f.Format != format || f.Version != version:
		return nil, fmt.Errorf("%w: format %q, version %d: this program knows %s, version %d", ErrLease, f.Format, f.Version, format, version)
	case f.CRC64 != fmt.Sprintf("%016x", crc64.Checksum(f.Lease)):
		return nil, fmt.Errorf("%w: checksum mismatch", ErrLease)
	}
	l := new(Lease)
	if err := json.Unmarshal(f.Lease, l); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLease, err)
	}
	return l, nil
}

// Package wire is what the two ends of a guest's control channel say: values
// of these types in JSON, one after another.
package wire

// A Request asks the guest to run a script.
type Request struct {
	ID     int
	Script string // for its /bin/sh
	Stdin  []byte
	// Kill ends the script of that ID instead.
	Kill bool
}

// A Reply says what a script came to. The first one, with the ID 0, says that
// the guest is up, or on Stderr why it is not.
type Reply struct {
	ID             int
	Code           int // the exit status; -1 where a signal ended it
	Stdout, Stderr []byte
}

// Channel is the name of the port of virtio-serial, and ModuleList the file of
// the guest that lists the modules to load, a path and parameters on each line.
const (
	Channel    = "nvmecr.guest"
	ModuleList = "/modules"
)

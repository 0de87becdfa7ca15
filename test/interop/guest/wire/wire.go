// Package wire has the messages on a guest's control channel: values of these types in JSON, one after another.
package wire

// A Request asks the guest to run a script.
type Request struct {
	ID     int
	Script string // for /bin/sh of the guest
	Stdin  []byte
	// Kill ends the script of that ID instead.
	Kill bool
}

// A Reply is the result of a script. The first reply, with the ID 0, means that the guest is up, or has on Stderr why it is not.
type Reply struct {
	ID             int
	Code           int // exit status; -1 if a signal ended it
	Stdout, Stderr []byte
}

// Channel is the name of the port of virtio-serial, and ModuleList the file of
// the guest that lists the modules to load, a path and parameters on each line.
const (
	Channel    = "nvmecr.guest"
	ModuleList = "/modules"
)

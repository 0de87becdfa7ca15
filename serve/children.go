package serve

import (
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// ServeChildren begins to make the calls of forked children whose parent has ended. It is called once, before Close. An error only
// affects such children.
func (s *Server) ServeChildren() (err error) {
	if number := owner.HostNumber(store.LockGroup(s.cfg.Run)); number != 0 {
		s.children, err = posixshim.Refer(number, s.ofChild, s.logf)
	}
	return err
}

// ofChild returns the posixshim.Process for the rank that the environment of a child has. The rank may differ from that of self: in a
// tree of the job, too, what a child writes goes to the partition of its rank.
func (s *Server) ofChild(getenv func(string) string) (*posixshim.Process, error) {
	proc, err := store.ProcFromEnv(getenv)
	if err != nil {
		return nil, err
	}
	return s.Process(proc), nil
}

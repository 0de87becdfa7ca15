package serve

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"nvmecr/fuseview"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// The view of a run has a tree for each rank on this host, made when a process of it first asks, and a link:
//
//	self     to the tree of the calling process
//	job      the files of singletons
//	3of8     what rank 3 of a job of 8 has
//
// So self/PATH is, to the kernel, what MOUNT/PATH is to the preloaded library of the same process. Names and numbers
// are those of store.Proc.Tree.

// Export mounts the view at dir, an existing directory. If there is no FUSE, the error says what is missing.
func (s *Server) Export(dir string) error {
	view, err := fuseview.MountTrees(dir, fuseview.Trees{Tree: s.tree, Self: s.self, Names: s.names}, fuseview.Options{Logf: s.logf})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.views = append(s.views, view)
	return nil
}

// tree returns the tree of a name. Every valid name has one, since any rank of any job may start.
func (s *Server) tree(name string) (fuseview.Tree, bool) {
	proc, ok := parseProcName(name)
	if !ok {
		return fuseview.Tree{}, false
	}
	_, number := proc.Tree()
	return fuseview.Tree{Name: name, Process: s.Process(proc), Number: number}, true
}

// names lists the trees that have been looked up.
func (s *Server) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for proc := range s.processes {
		names = append(names, procName(proc))
	}
	return names
}

// self returns the name of the tree of a process. As in the preloaded library, the environment of the process
// determines its rank. A process of another PID namespace, whose environment cannot be read, counts as a singleton.
func (s *Server) self(pid int) (string, error) {
	if s.cfg.View == config.ViewJob {
		return procName(store.Proc{Rank: 0, Size: 1}), nil
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil && pid != 0 {
		return "", err
	}
	proc, err := store.ProcFromEnv(posixshim.Environment(string(data)))
	return procName(proc), err
}

func procName(p store.Proc) string {
	name, _ := p.Tree()
	return name
}

func parseProcName(name string) (store.Proc, bool) {
	if alone := (store.Proc{Rank: 0, Size: 1}); name == procName(alone) {
		return alone, true
	}
	first, second, _ := strings.Cut(name, "of")
	rank, err := strconv.ParseUint(first, 10, 20)
	if err != nil {
		return store.Proc{}, false
	}
	size, err := strconv.ParseUint(second, 10, 31)
	if err != nil || size < 2 || rank >= size {
		return store.Proc{}, false
	}
	p := store.Proc{Rank: int(rank), Size: int(size)}
	return p, procName(p) == name
}

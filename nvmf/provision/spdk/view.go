package spdk

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
)

// Prefixes of the names of volumes.
const (
	liveName  = "nvmecr:"
	keyedName = "nvmecr-keyed:" // a live volume whose hosts have keys
	freedName = "nvmecr-freed:"
)

// store is an entry of bdev_lvol_get_lvstores.
type store struct {
	UUID         string `json:"uuid"`
	Name         string `json:"name"`
	ClusterSize  uint64 `json:"cluster_size"`
	FreeClusters uint64 `json:"free_clusters"`
	Clusters     uint64 `json:"total_data_clusters"`
}

func (s *store) free() nvmf.Bytes { return nvmf.Bytes(s.FreeClusters) * nvmf.Bytes(s.ClusterSize) }

// round rounds a size up as SPDK does: to whole MiB, then to whole clusters.
func (s *store) round(size nvmf.Bytes) nvmf.Bytes {
	size = size.AlignUp(nvmf.MiB)
	cluster := nvmf.Bytes(max(1, s.ClusterSize))
	return (size + cluster - 1) / cluster * cluster
}

// volume is a logical volume in the result of bdev_get_bdevs.
type volume struct {
	Name      string   `json:"name"`
	UUID      string   `json:"uuid"`
	Aliases   []string `json:"aliases"`
	BlockSize uint64   `json:"block_size"`
	NumBlocks uint64   `json:"num_blocks"`
	Limits    struct {
		MiB uint64 `json:"rw_mbytes_per_sec"`
	} `json:"assigned_rate_limits"`
	Specific struct {
		Volume struct {
			Store     string `json:"lvol_store_uuid"`
			Allocated uint64 `json:"num_allocated_clusters"`
		} `json:"lvol"`
	} `json:"driver_specific"`
}

func (v *volume) size() nvmf.Bytes { return nvmf.Bytes(v.BlockSize * v.NumBlocks) }

// subsystem is an entry of nvmf_get_subsystems.
type subsystem struct {
	NQN          string     `json:"nqn"`
	AllowAnyHost bool       `json:"allow_any_host"`
	Listen       []address  `json:"listen_addresses"`
	Hosts        []hostName `json:"hosts"`
	Namespaces   []struct {
		NSID uint32 `json:"nsid"`
		Bdev string `json:"bdev_name"`
	} `json:"namespaces"`
}

// hostName is a host of a subsystem with the names of its keys in SPDK's keyring. A
// name is empty if there is no key.
type hostName struct {
	NQN           string `json:"nqn"`
	Key           string `json:"dhchap_key,omitempty"`
	ControllerKey string `json:"dhchap_ctrlr_key,omitempty"`
}

// address is an address at which a subsystem listens.
type address struct {
	TRType  string `json:"trtype"`
	AdrFam  string `json:"adrfam"`
	TRAddr  string `json:"traddr"`
	TRSvcID string `json:"trsvcid"`
}

func (a address) same(b address) bool {
	return strings.EqualFold(a.TRType, b.TRType) && strings.EqualFold(a.AdrFam, b.AdrFam) && a.TRAddr == b.TRAddr && a.TRSvcID == b.TRSvcID
}

// host returns the entry of a host, or nil if the host is not listed.
func (s *subsystem) host(nqn string) *hostName {
	for i := range s.Hosts {
		if s.Hosts[i].NQN == nqn {
			return &s.Hosts[i]
		}
	}
	return nil
}

// serves reports whether a volume is the only namespace of the subsystem.
func (s *subsystem) serves(v *volume) bool {
	return v != nil && len(s.Namespaces) == 1 && s.Namespaces[0].NSID == 1 && s.Namespaces[0].Bdev == v.Name
}

// view has the storage and the subsystems of jobs, as the target reports them.
type view struct {
	store      *store
	live       map[string]*volume
	keyed      map[string]bool // jobs whose volume has keyedName
	freed      map[string]*volume
	zeroing    map[string]*volume // marks of deletions in progress; see zeroing.go
	subsystems map[string]*subsystem
	strange    map[string]error // by job: how it is served differently than with these options
	allocated  uint64           // clusters of all volumes, including those of other programs
}

// accounted reports whether every cluster is free or belongs to a volume. Otherwise a
// volume is being deleted.
func (v *view) accounted() bool { return v.store.FreeClusters+v.allocated == v.store.Clusters }

// look reads the view from the target.
func (p *Provisioner) look(ctx context.Context) (*view, error) {
	v := &view{live: map[string]*volume{}, keyed: map[string]bool{}, freed: map[string]*volume{}, zeroing: map[string]*volume{}, subsystems: map[string]*subsystem{}, strange: map[string]error{}}
	var stores []store
	if err := p.call(ctx, "bdev_lvol_get_lvstores", nil, &stores); err != nil {
		return nil, err
	}
	var err error
	if v.store, err = p.choose(stores); err != nil {
		return nil, err
	}
	var volumes []*volume
	if err := p.call(ctx, "bdev_get_bdevs", nil, &volumes); err != nil {
		return nil, err
	}
	for _, x := range volumes {
		v.add(x)
	}
	var subsystems []*subsystem
	if err := p.call(ctx, "nvmf_get_subsystems", nil, &subsystems); err != nil {
		return nil, err
	}
	for _, s := range subsystems {
		if job := provision.JobOf(p.o.Base, s.NQN); job != "" {
			v.subsystems[job] = s
		}
		v.compare(s, provision.JobOf(p.o.Base, s.NQN), volumes)
	}
	return v, nil
}

// compare records in strange a namespace of a subsystem that is not as these options
// would make it. The subsystem belongs to job, or to no job. A job may have been
// created with another store, or with another prefix of NQNs.
func (v *view) compare(s *subsystem, job string, volumes []*volume) {
	for _, n := range s.Namespaces {
		i := slices.IndexFunc(volumes, func(x *volume) bool { return x.Name == n.Bdev })
		if i < 0 {
			continue
		}
		if in := volumes[i].Specific.Volume.Store; job != "" && in != "" && in != v.store.UUID {
			v.strange[job] = fmt.Errorf("%w: %s serves volume %s of another store than %s: name that with &store=, or give the job another name, or &nqn=PREFIX for each store",
				provision.ErrInvalid, s.NQN, strings.Join(volumes[i].Aliases, " "), v.store.Name)
		}
		for owner, x := range v.live {
			if x == volumes[i] && owner != job {
				v.strange[owner] = fmt.Errorf("%w: its volume is served as %s: give the &nqn=PREFIX that it was created with, or another name",
					provision.ErrInvalid, s.NQN)
			}
		}
	}
}

// choose returns the store to use.
func (p *Provisioner) choose(stores []store) (*store, error) {
	var names []string
	for i := range stores {
		if stores[i].Name == p.o.Store || p.o.Store == "" && len(stores) == 1 {
			return &stores[i], nil
		}
		names = append(names, stores[i].Name)
	}
	switch {
	case len(stores) == 0:
		return nil, fmt.Errorf("the target at %s has no logical volume store: make one with rpc.py bdev_lvol_create_lvstore BDEV NAME", p.o.Socket)
	case p.o.Store == "":
		return nil, fmt.Errorf("the target at %s has several logical volume stores: choose one with ?store=, of %s", p.o.Socket, strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("the target at %s has no logical volume store %q: it has %s", p.o.Socket, p.o.Store, strings.Join(names, ", "))
}

// add adds a block device to the view, if it is a volume of a job in the store.
func (v *view) add(x *volume) {
	if x.Specific.Volume.Store == v.store.UUID {
		v.allocated += x.Specific.Volume.Allocated
	}
	for _, alias := range x.Aliases {
		name, ok := strings.CutPrefix(alias, v.store.Name+"/")
		if !ok {
			continue
		}
		for prefix, volumes := range map[string]map[string]*volume{liveName: v.live, keyedName: v.live, freedName: v.freed, zeroingName: v.zeroing} {
			job, ok := strings.CutPrefix(name, prefix)
			if ok && (provision.CheckJob(job) == nil || job == freeSpace) {
				volumes[job] = x
				v.keyed[job] = v.keyed[job] || prefix == keyedName
			}
		}
	}
}

// describe returns the namespace of a job.
func (v *view) describe(job string) provision.Namespace {
	n := provision.Namespace{Job: job, State: provision.Freed, Hosts: []string{}}
	l, s := v.live[job], v.subsystems[job]
	if l == nil && v.freed[job] != nil {
		n.Size = v.freed[job].size()
		return n
	}
	if l == nil && v.zeroing[job] != nil {
		return n
	}
	n.State = provision.Incomplete
	if l != nil {
		n.Size, n.Rate = l.size(), nvmf.Bytes(l.Limits.MiB)*nvmf.MiB
	}
	if s == nil {
		return n
	}
	for _, h := range s.Hosts {
		n.Hosts = append(n.Hosts, h.NQN)
		n.Authenticate = n.Authenticate || h.Key != ""
	}
	slices.Sort(n.Hosts)
	for _, a := range s.Listen {
		id, err := nvmf.ParseTransportID(fmt.Sprintf("trtype:%s adrfam:%s traddr:%s trsvcid:%s subnqn:%s ns:1", a.TRType, a.AdrFam, a.TRAddr, a.TRSvcID, s.NQN))
		if err == nil { // other addresses have an unknown transport
			n.Targets = append(n.Targets, id)
		}
	}
	if s.serves(l) && len(s.Listen) > 0 && !s.AllowAnyHost {
		n.State = provision.Ready
	}
	return n
}

// List returns all jobs that have a volume or a subsystem.
func (p *Provisioner) List(ctx context.Context) ([]provision.Namespace, error) {
	v, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	jobs := map[string]bool{}
	for job := range v.live {
		jobs[job] = true
	}
	for job := range v.freed {
		jobs[job] = true
	}
	for job := range v.zeroing {
		jobs[job] = true
	}
	for job := range v.subsystems {
		jobs[job] = true
	}
	delete(jobs, freeSpace)
	list := []provision.Namespace{}
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		list = append(list, v.describe(job))
	}
	return list, nil
}

package placement

import (
	"fmt"
	"slices"
	"strings"

	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
	"nvmecr/nvmf"
)

// problem is a job whose nodes and targets are grouped into classes.
type problem struct {
	places
	job             Job
	ranks           int
	want            int // number of targets
	available       int
	unknownDistance int // distance to places that the topology does not have
	weighted        bool

	hosts     []hostClass
	hostClass []int // class of each host
	devices   []deviceClass
	distance  [][]int32  // in switches, [host class][device class]
	shared    [][]uint64 // bits for the kinds of domains that the two classes share

	respected uint64 // bits of the kinds that the plan has to respect
}

type location struct {
	at      int      // switch, -1: unknown
	domains []string // by number of the kind; "" if it has none
	node    string   // set if the node is a host of the job and has a target
}

func (w location) key() string {
	return fmt.Sprintf("%d\x00%s\x00%s", w.at, w.node, strings.Join(w.domains, "\x00"))
}

type hostClass struct {
	location
	ranks int
}

type deviceClass struct {
	location
	targets []*site.Target // the preferred ones first
	limit   int            // maximum number of ranks of a target
}

func newProblem(job Job, net *topology.Topology, inv *site.Inventory) (*problem, error) {
	p := &problem{places: places{net, inv}, job: job}
	if len(inv.Domains) > 62 {
		return nil, fmt.Errorf("%d kinds of failure domains, and 62 are the most: %w", len(inv.Domains), site.ErrInventory)
	}
	shared := make(map[string]bool) // nodes of the job that have targets
	for _, t := range inv.Targets {
		shared[t.Node] = true
	}
	hosts := make(map[string]int)
	own := make(map[string]bool)
	for _, h := range job.Hosts {
		if h.Ranks < 1 {
			return nil, fmt.Errorf("host %s has %d ranks", h.Name, h.Ranks)
		}
		if own[h.Name] {
			return nil, fmt.Errorf("host %s is listed twice", h.Name)
		}
		own[h.Name] = true
		p.ranks += h.Ranks
		w := p.host(h.Name)
		if shared[h.Name] {
			w.node = h.Name
		}
		c, ok := hosts[w.key()]
		if !ok {
			c = len(p.hosts)
			hosts[w.key()] = c
			p.hosts = append(p.hosts, hostClass{location: w})
		}
		p.hosts[c].ranks += h.Ranks
		p.hostClass = append(p.hostClass, c)
	}
	if p.ranks == 0 {
		return nil, fmt.Errorf("a job without ranks has no ranks to place")
	}
	p.classify(own)
	if err := p.count(); err != nil {
		return nil, err
	}
	p.measure()
	return p, nil
}

// classify groups the available targets into classes.
func (p *problem) classify(own map[string]bool) {
	classes := make(map[string]int)
	for i := range p.inv.Targets {
		t := &p.inv.Targets[i]
		if t.Health == site.Failed || t.Health == site.Drained {
			continue
		}
		w := p.target(t)
		if own[t.Node] {
			w.node = t.Node
		}
		limit := p.ranks
		if p.job.RankCapacity > 0 && t.Capacity > 0 {
			limit = int(min(t.Capacity/p.job.RankCapacity, nvmf.Bytes(p.ranks)))
		}
		if limit == 0 {
			continue
		}
		key := fmt.Sprintf("%s\x00%d\x00%d\x00%d\x00%s", w.key(), limit, t.Bandwidth, t.Load, t.Health)
		c, ok := classes[key]
		if !ok {
			c = len(p.devices)
			classes[key] = c
			p.devices = append(p.devices, deviceClass{location: w, limit: limit})
		}
		p.devices[c].targets = append(p.devices[c].targets, t)
		p.available++
	}
}

// count sets the number of targets of the job.
func (p *problem) count() error {
	p.weighted = true
	var least nvmf.Bytes
	for _, d := range p.devices {
		b := d.targets[0].Bandwidth
		p.weighted = p.weighted && b > 0
		if least == 0 || b < least {
			least = b
		}
	}
	p.want = p.job.Targets
	switch {
	case p.want > 0:
	case p.job.RankBandwidth > 0 && p.weighted && least > 0:
		p.want = int((nvmf.Bytes(p.ranks)*p.job.RankBandwidth + least - 1) / least)
	default:
		p.want = (p.ranks + RanksPerTarget - 1) / RanksPerTarget
	}
	p.want = min(max(p.want, 1), p.ranks) // more targets than ranks would be unused
	if p.want > p.available {
		return fmt.Errorf("%d targets are wanted, and %d of %d are available: %w", p.want, p.available, len(p.inv.Targets), ErrTooFew)
	}
	return nil
}

// measure computes the distances of classes, and the domains that they share.
func (p *problem) measure() {
	p.unknownDistance = 1
	p.distance, p.shared = make([][]int32, len(p.hosts)), make([][]uint64, len(p.hosts))
	for h := range p.hosts {
		p.distance[h], p.shared[h] = make([]int32, len(p.devices)), make([]uint64, len(p.devices))
		for d := range p.devices {
			p.distance[h][d] = -1
			if from, to := p.hosts[h].at, p.devices[d].at; from >= 0 && to >= 0 {
				hops, _ := p.net.Hops(from, to)
				p.distance[h][d] = int32(hops)
				p.unknownDistance = max(p.unknownDistance, hops+2)
			}
			p.shared[h][d] = sharedDomains(p.hosts[h].location, p.devices[d].location)
			if p.job.Strict && (p.unlocated(p.hosts[h].location) || p.unlocated(p.devices[d].location)) {
				p.shared[h][d] |= 1 << slices.Index(p.inv.Domains, site.Switch)
			}
		}
	}
	for h := range p.hosts {
		for d := range p.devices {
			switch {
			case p.shared[h][d]>>len(p.inv.Domains)&1 == 1: // the same node
				p.distance[h][d] = 0
			case p.distance[h][d] < 0:
				p.distance[h][d] = int32(p.unknownDistance)
			}
		}
	}
}

// sharedDomains returns which kinds of domains two places share.
func sharedDomains(a, b location) (bits uint64) {
	for k, v := range a.domains {
		if v != "" && v == b.domains[k] {
			bits |= 1 << k
		}
	}
	if a.node != "" && a.node == b.node {
		bits |= 1 << len(a.domains)
	}
	return bits
}

// respect sets the kinds of domains that the plan has to respect: these, which are the last ones of the inventory's
// list, and the node.
func (p *problem) respect(kinds []string) {
	ignored := len(p.inv.Domains) - len(kinds)
	p.respected = (1<<(len(p.inv.Domains)+1) - 1) &^ (1<<ignored - 1)
}

func (p *problem) hops(h, d int) int { return int(p.distance[h][d]) }

// shares reports whether two classes share a domain that has to be respected.
func (p *problem) shares(h, d int) bool { return p.shared[h][d]&p.respected != 0 }

// apart reports whether no rank of the job shares a domain with targets of a class.
func (p *problem) apart(d int) bool {
	for h := range p.hosts {
		if p.shares(h, d) {
			return false
		}
	}
	return true
}

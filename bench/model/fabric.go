package model

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"nvmecr/nvmf"
)

// A Fabric is the hardware between ranks and their data, in bytes per second.
type Fabric struct {
	Name           string
	Target         float64 // bandwidth of one target's medium
	TargetLink     float64 // network bandwidth of its node, for each target
	NodeLink       float64 // network bandwidth of a node with ranks
	RanksPerNode   int
	Latency        time.Duration // of a small message between two ranks, one way
	RanksPerTarget int
}

// PaperFabric is the paper's cluster (section IV.A). It has the largest number of ranks for each
// target that the paper recommends (section III.F), and the bandwidth of an SSD that it names
// (section I). The latency is usual for EDR InfiniBand; the paper has none.
var PaperFabric = Fabric{
	Name:   "100 Gbit/s EDR, 28 ranks a node, 112 ranks for each SSD of 2.5 GB/s, one SSD a node",
	Target: 2.5e9, TargetLink: 12.5e9, NodeLink: 12.5e9,
	RanksPerNode: 28, RanksPerTarget: 112, Latency: 2 * time.Microsecond,
}

// FabricSyntax is an example for ParseFabric.
const FabricSyntax = "target=2.5G link=12.5G node=12.5G ranks-per-node=28 ranks-per-target=112 latency=2us"

// ParseFabric reads words such as those of FabricSyntax: bandwidths in bytes per second, written
// like sizes. Values that are not named are the paper's. The error names the word.
func ParseFabric(text string) (Fabric, error) {
	f := PaperFabric
	if strings.TrimSpace(text) == "" {
		return f, nil
	}
	for word := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(word, "=")
		if err := f.set(name, value); err != nil {
			return f, fmt.Errorf("%q: %w; name one or more of %q", word, err, FabricSyntax)
		}
	}
	f.Name = strings.Join(strings.Fields(text), " ")
	return f, nil
}

func (f *Fabric) set(name, value string) error {
	bandwidths := map[string]*float64{"target": &f.Target, "link": &f.TargetLink, "node": &f.NodeLink}
	counts := map[string]*int{"ranks-per-node": &f.RanksPerNode, "ranks-per-target": &f.RanksPerTarget}
	switch to, count := bandwidths[name], counts[name]; {
	case to != nil:
		v, err := bandwidth(value)
		*to = v
		return err
	case count != nil:
		n, err := strconv.ParseUint(value, 10, 24)
		if err != nil || n == 0 {
			return fmt.Errorf("is not a number above zero")
		}
		*count = int(n)
		return nil
	case name == "latency":
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return fmt.Errorf("is not a time such as 2us")
		}
		f.Latency = d
		return nil
	}
	return fmt.Errorf("is none")
}

// bandwidth reads a number with K, M, G or T: powers of 1000, as for networks and SSDs.
func bandwidth(text string) (float64, error) {
	number := strings.TrimRight(text, "KMGT")
	factor := map[string]float64{"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[text[len(number):]]
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v*factor >= 1) || v*factor > float64(1<<20)*float64(nvmf.TiB) {
		return 0, fmt.Errorf("is not a bandwidth above zero, such as 2.5G")
	}
	return v * factor, nil
}

package site

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

const sample = `
version: 1
failure-domains: [cooling, power, switch]
nodes:
  - names: cn[1-2]
    domains: {power: pdu1, cooling: row1}
targets:
  - name: st1a
    target: trtype:TCP traddr:10.0.0.1 subnqn:nqn.a
    node: st1
    capacity: 3.2TB
    bandwidth: 2GiB
    domains: {power: pdu9}
    load: 28
  - {name: st2a, target: "trtype:TCP traddr:10.0.0.2 subnqn:nqn.b", switch: rack2, health: drained}
`

func TestParse(t *testing.T) {
	i, err := Parse([]byte(sample))
	require.NoError(t, err)
	assert.Equal(t, []string{"cooling", "power", "switch"}, i.Domains)
	assert.Equal(t, map[string]string{"power": "pdu1", "cooling": "row1"}, i.Of("cn2"))
	assert.Nil(t, i.Of("cn3"))
	assert.Equal(t, []Target{
		{Name: "st1a", Target: "trtype:TCP traddr:10.0.0.1 subnqn:nqn.a", Node: "st1", Capacity: 3_200_000_000_000, Bandwidth: 2 * nvmf.GiB,
			Domains: map[string]string{"power": "pdu9"}, Load: 28, Health: OK},
		{Name: "st2a", Target: "trtype:TCP traddr:10.0.0.2 subnqn:nqn.b", Switch: "rack2", Health: Drained},
	}, i.Targets)
}

func TestDefaultDomains(t *testing.T) {
	i, err := Parse([]byte("version: 1\ntargets: [{name: a, target: file:b, domains: {rack: r, aisle: x}}]"))
	require.NoError(t, err)
	assert.Equal(t, []string{"aisle", "rack", "switch"}, i.Domains)
}

func TestParseRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"":                                 "inventory",
		"version: 2":                       "version 2",
		"version: 1\nfoo: bar":             "foo",
		"version: 1\ntargets: [{name: a}]": "needs a name, and a target",
		"version: 1\ntargets: [{name: a, target: tcp:b}]":                             "unknown key",
		"version: 1\ntargets: [{name: a, target: file:b}, {name: a, target: file:c}]": "twice",
		"version: 1\ntargets: [{name: a, target: file:b, capacity: much}]":            "not a size",
		"version: 1\ntargets: [{name: a, admin: [x, y]}, {name: b, admin: [x, y]}]":   "a and b have the same admin command",
		"version: 1\ntargets: [{name: a, target: file:b, health: fine}]":              "health",
		"version: 1\ntargets: [{name: a, target: file:b, load: -1}]":                  "load",
		"version: 1\nfailure-domains: [switch]\nnodes: [{names: a, domains: {p: 1}}]": "does not have p",
		"version: 1\nfailure-domains: [a, a]":                                         "twice",
		"version: 1\nnodes: [{names: 'a[', domains: {p: 1}}]":                         "bracket",
		"version: 1\nnodes: [{names: 'a,a', domains: {p: 1}}]":                        "twice",
		"version: 1\nnodes: [{names: a, domains: {switch: r}}]":                       "topology",
	} {
		_, err := Parse([]byte(text))
		assert.ErrorContains(t, err, says, text)
	}
}

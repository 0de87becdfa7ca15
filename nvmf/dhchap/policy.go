package dhchap

import (
	"fmt"
	"slices"
	"strings"
)

// Names of hashes and groups in nvmet, nvme-cli and SPDK.
var (
	hashNames  = map[string]Hash{"sha256": SHA256, "sha384": SHA384, "sha512": SHA512}
	groupNames = map[string]Group{"null": NullGroup, "ffdhe2048": FFDHE2048, "ffdhe3072": FFDHE3072, "ffdhe4096": FFDHE4096,
		"ffdhe6144": FFDHE6144, "ffdhe8192": FFDHE8192}
)

// ParseHashes parses a comma-separated list of hashes, best first: sha256, sha384,
// sha512. It returns nil for an empty text.
func ParseHashes(text string) ([]Hash, error) { return parseNames(text, hashNames) }

// ParseGroups parses a comma-separated list of groups, best first: ffdhe2048 to
// ffdhe8192, and null for no Diffie-Hellman exchange. It returns nil for an empty text.
func ParseGroups(text string) ([]Group, error) { return parseNames(text, groupNames) }

func parseNames[T comparable](text string, names map[string]T) ([]T, error) {
	if text == "" {
		return nil, nil
	}
	var list []T
	for _, word := range strings.Split(text, ",") {
		v, ok := names[strings.ToLower(strings.TrimSpace(word))]
		if !ok {
			return nil, fmt.Errorf("%q is none of %s", word, strings.Join(known(names), ", "))
		}
		if slices.Contains(list, v) {
			return nil, fmt.Errorf("%q is there twice", word)
		}
		list = append(list, v)
	}
	return list, nil
}

// known returns the names, weakest first.
func known[T comparable](names map[string]T) []string {
	var all []string
	for name := range names {
		all = append(all, name)
	}
	slices.SortFunc(all, func(a, b string) int {
		if a == "null" || b == "null" {
			return strings.Compare(b, a) // "null" before the others
		}
		return strings.Compare(a, b)
	})
	return all
}

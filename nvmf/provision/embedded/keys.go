package embedded

import (
	"encoding/json"
	"fmt"
	"maps"

	"nvmecr/nvmf/dhchap"
)

// hostKeys has the keys of hosts by their NQN. Printing it does not show the keys. Its
// JSON form contains the keys; it is used in the admin socket and in the record of a
// job, which only this user can read.
type hostKeys map[string]dhchap.Keys

// text is the JSON form of dhchap.Keys.
type text struct {
	Host       string `json:"host"`
	Controller string `json:"controller,omitempty"`
}

// with returns a copy of k with the keys of one more host.
func (k hostKeys) with(host string, keys dhchap.Keys) hostKeys {
	k = maps.Clone(k)
	if k == nil {
		k = hostKeys{}
	}
	k[host] = keys
	return k
}

// MarshalJSON writes the keys in plain text.
func (k hostKeys) MarshalJSON() ([]byte, error) {
	all := map[string]text{}
	for host, keys := range k {
		if keys.Host.IsZero() {
			return nil, fmt.Errorf("host %s has no key", host)
		}
		t := text{Host: keys.Host.Reveal()}
		if !keys.Controller.IsZero() {
			t.Controller = keys.Controller.Reveal()
		}
		all[host] = t
	}
	return json.Marshal(all)
}

// UnmarshalJSON reads the result of MarshalJSON. Its errors show no key.
func (k *hostKeys) UnmarshalJSON(b []byte) error {
	var all map[string]text
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	*k = nil
	for host, t := range all {
		var keys dhchap.Keys
		var err error
		if keys.Host, err = dhchap.ParseSecret(t.Host); err == nil && t.Controller != "" {
			keys.Controller, err = dhchap.ParseSecret(t.Controller)
		}
		if err != nil {
			return fmt.Errorf("key of host %s: %w", host, err)
		}
		*k = k.with(host, keys)
	}
	return nil
}

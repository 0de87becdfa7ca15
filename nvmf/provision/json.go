package provision

import (
	"encoding/json"

	"nvmecr/nvmf"
)

// plain is a Namespace without its methods.
type plain Namespace

// wire is the JSON form of a Namespace, in which addresses are strings.
type wire struct {
	*plain
	Targets []string `json:"targets"`
}

// MarshalJSON writes addresses in the form of the option --target.
func (n Namespace) MarshalJSON() ([]byte, error) {
	w := wire{plain: (*plain)(&n), Targets: []string{}}
	for _, id := range n.Targets {
		w.Targets = append(w.Targets, id.String())
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads the result of MarshalJSON.
func (n *Namespace) UnmarshalJSON(b []byte) error {
	*n = Namespace{}
	w := wire{plain: (*plain)(n)}
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	for _, s := range w.Targets {
		id, err := nvmf.ParseTransportID(s)
		if err != nil {
			return err
		}
		n.Targets = append(n.Targets, id)
	}
	return nil
}

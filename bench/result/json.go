package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Version is the version of the JSON format. It changes when a reader of the old
// version would misinterpret the new one. A new field alone does not change it.
const Version = 1

// A Report has the results of one run of the command.
type Report struct {
	Version int       `json:"version"`
	Program string    `json:"program"` // name and version of the measuring program
	Command string    `json:"command"` // its command line
	Began   time.Time `json:"began"`
	Machine []Fact    `json:"machine"`
	Results []*Result `json:"results"`
}

// ErrVersion is returned for the JSON of another version.
var ErrVersion = errors.New("not a report of this version")

// Write writes the report as JSON.
func (r *Report) Write(w io.Writer) error {
	for _, res := range r.Results {
		if err := res.Check(); err != nil {
			return err
		}
	}
	r.Version = Version
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// Read reads the output of Write. It returns ErrVersion for another version.
func Read(from io.Reader) (*Report, error) {
	var r Report
	if err := json.NewDecoder(from).Decode(&r); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if r.Version != Version {
		return nil, fmt.Errorf("%w: it has version %d, this is %d; read it with the nvmecr that wrote it", ErrVersion, r.Version, Version)
	}
	for _, res := range r.Results {
		if res == nil {
			return nil, errors.New("report: a result is null")
		}
		if err := res.Check(); err != nil {
			return nil, err
		}
	}
	return &r, nil
}

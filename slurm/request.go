package slurm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"nvmecr/internal/config"
	"nvmecr/nvmf"
)

// A Request is the space that a job asks for.
type Request struct {
	Targets    int           `json:"targets"`
	Capacity   nvmf.Bytes    `json:"capacity"` // total of all targets
	Name       string        `json:"name,omitempty"`
	Retain     time.Duration `json:"retain"` // time to keep the data after the end of the job
	Strict     bool          `json:"strict,omitempty"`
	Copies     config.Copies `json:"copies,omitempty"`      // copies of checkpoints on other targets; "": none
	CopiesSync bool          `json:"copies_sync,omitempty"` // mirrors instead of copies
}

// Limits of a request.
const (
	maxTargets = 1024
	maxRetain  = 365 * 24 * time.Hour
	maxName    = 24 // so that a namespace can be named by it, the user id and the prefix of the target
)

// ErrRequest is wrapped by the errors of ParseRequest.
var ErrRequest = errors.New("not a request such as nvmf:2,capacity=40G,name=run7,retain=2d,strict")

// ParseRequest parses a request: nvmf:TARGETS, then options. defaults has the capacity for each target of a request
// without one, and the retain time of a request with a name and without a time. A request without a name is retained
// for no time: no later job could find its data.
func ParseRequest(text string, defaults Request) (Request, error) {
	r := defaults
	words := strings.Split(text, ",")
	count, ok := strings.CutPrefix(words[0], "nvmf:")
	n, err := strconv.Atoi(count)
	if !ok || err != nil || n < 1 || n > maxTargets {
		return r, fmt.Errorf("%q: a number of targets from 1 to %d comes first: %w", text, maxTargets, ErrRequest)
	}
	r.Targets, r.Capacity = n, defaults.Capacity*nvmf.Bytes(n)
	retain := time.Duration(-1)
	for _, word := range words[1:] {
		key, value, given := strings.Cut(word, "=")
		switch key {
		case "capacity":
			r.Capacity, err = nvmf.ParseSize(value)
		case "name":
			r.Name, err = value, checkName(value)
		case "retain":
			retain, err = ParseRetain(value)
		case "strict":
			r.Strict = true
		case "copies":
			r.Copies, err = parseCopies(value, given)
		case "copies-sync":
			r.CopiesSync = true
		default:
			err = fmt.Errorf("%q is none of capacity, name, retain, strict, copies, copies-sync", word)
		}
		if err != nil {
			return r, fmt.Errorf("%q: %w: %w", text, err, ErrRequest)
		}
	}
	if err := r.checkCopies(); err != nil {
		return r, fmt.Errorf("%q: %w: %w", text, err, ErrRequest)
	}
	switch {
	case retain >= 0:
		r.Retain = retain
	case r.Name == "":
		r.Retain = 0
	}
	return r, nil
}

// parseCopies parses the value of copies. Without a value it is a full second copy.
func parseCopies(value string, given bool) (config.Copies, error) {
	copies := config.Copies(value)
	switch data, _ := copies.Shards(); {
	case !given:
		return config.CopiesPartner, nil
	case data == 0 && copies != config.CopiesPartner:
		return "", fmt.Errorf("copies %q is not partner, or rs:K+M with numbers whose sum is at most %d, such as rs:4+2", value, config.MaxShards)
	}
	return copies, nil
}

// checkCopies refuses copies for which there are too few targets.
func (r Request) checkCopies() error {
	data, parity := r.Copies.Shards()
	switch {
	case r.CopiesSync && data > 0:
		return fmt.Errorf("copies-sync mirrors targets, which can be combined with copies=partner only, not with copies=%s", r.Copies)
	case data+parity > r.Targets:
		return fmt.Errorf("copies=%s makes %d shards, each for a target on another node, so it needs at least %d targets", r.Copies, data+parity, data+parity)
	case r.Copies != "" && !r.CopiesSync && r.Targets < 2:
		return errors.New("copies are on other targets, so they need at least two")
	}
	return nil
}

func checkName(name string) error {
	ok := len(name) >= 1 && len(name) <= maxName
	for _, c := range name {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c))
	}
	if !ok || strings.ContainsAny(name[:1], "._-") {
		return fmt.Errorf("name %q has to be 1 to %d letters, digits, dots, dashes and underscores, a letter or digit first", name, maxName)
	}
	return nil
}

// ParseRetain parses a duration: 2d, 12h, 30m or a number of seconds.
func ParseRetain(text string) (time.Duration, error) {
	units := map[string]time.Duration{"": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	number := strings.TrimRight(text, "mhd")
	unit, known := units[text[len(number):]]
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || !known || time.Duration(n) > maxRetain/unit {
		return 0, fmt.Errorf("retain %q is not a time such as 2d, 12h or 30m, at most 365d", text)
	}
	return time.Duration(n) * unit, nil
}

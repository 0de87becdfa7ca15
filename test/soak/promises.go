package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// listed has the fields of a listed checkpoint that soak reads.
type listed struct {
	Name      string
	Complete  bool
	Protected bool
	Shards    *struct{ Spare int }
}

// bears returns how many losses of targets the checkpoint survives according to the listing; negative if it is incomplete.
func (l *listed) bears() int {
	switch {
	case !l.Complete:
		return -1
	case l.Shards != nil:
		return max(l.Shards.Spare, 0)
	case l.Protected:
		return 1
	}
	return 0
}

// promises are the promises of listings: for each step, how many more targets may be lost before the checkpoint is incomplete. A negative
// number promises nothing.
type promises map[int]int

// lose records the loss of a target.
func (p promises) lose() {
	for step := range p {
		p[step]--
	}
}

// next returns the promises of a listing, without steps up to removed. They must not be weaker than the previous ones.
func (p promises) next(sets []listed, removed int) (promises, error) {
	says := promises{}
	for _, s := range sets {
		step, err := strconv.Atoi(s.Name)
		if err != nil || step <= removed {
			continue
		}
		if was, ok := says[step]; !ok || s.bears() > was {
			says[step] = s.bears()
		}
	}
	for step, bears := range p {
		if said, ok := says[step]; step > removed && bears >= 0 && (!ok || said < bears) {
			return says, fmt.Errorf("%d was listed, and bears the loss of %d more targets; now the listing is %+v", step, bears, sets)
		}
	}
	return says, nil
}

// newest returns the newest complete checkpoint; 0 if there is none.
func (p promises) newest() (newest int) {
	for step, bears := range p {
		if bears >= 0 {
			newest = max(newest, step)
		}
	}
	return newest
}

// list lists the checkpoints, and returns those of soak.
func (c *copying) list() (sets []listed, err error) {
	text, err := c.call("checkpoints", "--json")
	if err != nil {
		return nil, err
	}
	var series []struct{ Checkpoints []listed }
	if err := json.Unmarshal(text, &series); err != nil {
		return nil, fmt.Errorf("nvmecr checkpoints: %w", err)
	}
	for _, s := range series {
		sets = append(sets, s.Checkpoints...)
	}
	return sets, nil
}

// look records the promises of a listing. They must not be weaker than before.
func (c *copying) look() error {
	sets, err := c.list()
	if err != nil {
		return err
	}
	c.bears, err = c.bears.next(sets, c.step-kept)
	c.tally.note("listed: %v", c.bears)
	return err
}

// compareAll compares each checkpoint that is listed as complete, from outside.
func (c *copying) compareAll() error {
	dest := filepath.Join(c.dir, "outside")
	if err := os.Mkdir(dest, 0o700); err != nil {
		return err
	}
	_, copyErr := c.call("cp", "/", dest) // reports lost files
	for step, bears := range c.bears {
		if bears < 0 || c.spoilt[step] {
			continue
		}
		names := []string{}
		for rank := range c.ranks {
			names = append(names, strconv.Itoa(rank))
		}
		if c.tree {
			names = append(names, "all")
		}
		for _, name := range names {
			got, err := os.ReadFile(filepath.Join(c.root(dest, name), fmt.Sprintf("ck.%d.%s", step, name)))
			want, err2 := os.ReadFile(filepath.Join(c.contents(), strconv.Itoa(step), name))
			if err := errors.Join(err, err2); err != nil {
				return fmt.Errorf("%d is listed as complete: %w", step, errors.Join(err, copyErr))
			}
			if !bytes.Equal(got, want) {
				return fmt.Errorf("%d is listed as complete, and %s differs: %d bytes of %d, at %d", step, name, len(got), len(want), differ(got[:min(len(got), len(want))], want))
			}
			c.tally.add(&c.tally.Outside, int64(len(got)))
		}
		c.tally.event("checkpoints compared after losses", 1)
	}
	return os.RemoveAll(dest)
}

// root returns the directory of a rank's files in a copy of the store.
func (c *copying) root(dest, rank string) string {
	if c.tree {
		return dest
	}
	return filepath.Join(dest, "rank"+rank)
}

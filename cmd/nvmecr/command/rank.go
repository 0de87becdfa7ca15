package command

import (
	"fmt"
	"strconv"

	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
)

// soloText is how the solo partition is called in place of a rank. In JSON it has number -1.
const soloText = "solo"

// allRanks is the value of --rank when it was not given.
const allRanks = store.AllRanks

// rankFlag is the value of --rank.
type rankFlag int

// String returns what Set takes.
func (r *rankFlag) String() string {
	if *r == allRanks {
		return ""
	}
	return rankColumn(int(*r))
}

// Set takes a number, or "solo".
func (r *rankFlag) Set(text string) error {
	if text == soloText {
		*r = parttable.Solo
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return fmt.Errorf("%q is not the number of a rank, nor %q", text, soloText)
	}
	*r = rankFlag(n)
	return nil
}

// Type is what help calls it.
func (r *rankFlag) Type() string { return "rank" }

// rankColumn is a rank in a table, or in the name of a directory.
func rankColumn(rank int) string {
	if rank == parttable.Solo {
		return soloText
	}
	return strconv.Itoa(rank)
}

// rankName is a rank in a message.
func rankName(rank int) string {
	if rank == parttable.Solo {
		return soloText
	}
	return fmt.Sprintf("rank %d", rank)
}

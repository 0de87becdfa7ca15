package posixshim

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestConflict checks which locks conflict.
func TestConflict(t *testing.T) {
	const mine, other = Handle(1), Handle(2)
	held := []lock{{owner: mine, start: 10, end: 20, write: true}, {owner: other, start: 30, end: 40}}
	for _, tc := range []struct {
		name      string
		want      lock
		conflicts bool
	}{
		{"my own", lock{owner: mine, start: 0, end: 25, write: true}, false},
		{"a read where another writes", lock{owner: other, start: 19, end: 20}, true},
		{"right behind", lock{owner: other, start: 20, end: 30, write: true}, false},
		{"right before", lock{owner: other, start: 0, end: 10, write: true}, false},
		{"two reads", lock{owner: mine, start: 35, end: 36}, false},
		{"a write where another reads", lock{owner: mine, start: 35, end: 36, write: true}, true},
	} {
		assert.Equal(t, tc.conflicts, conflict(held, &tc.want) != nil, tc.name)
	}
}

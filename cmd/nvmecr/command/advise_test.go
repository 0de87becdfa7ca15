package command

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/checkpoint"
)

func TestOrdinal(t *testing.T) {
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 111: "111th", 122: "122nd"} {
		assert.Equal(t, want, ordinal(n))
	}
}

func TestCopiedBack(t *testing.T) {
	file := func(created, modified int64) checkpoint.File {
		return checkpoint.File{Created: time.Unix(created, 0), Modified: time.Unix(modified, 0)}
	}
	for _, c := range []struct {
		files []checkpoint.File
		want  bool
	}{
		{[]checkpoint.File{file(1, 2), file(2, 3)}, false},
		{[]checkpoint.File{file(1, 1), file(2, 2)}, false},
		{[]checkpoint.File{file(3, 2), file(1, 4)}, false}, // a time that the application has set
		{[]checkpoint.File{file(9, 2), file(9, 3)}, true},
		{[]checkpoint.File{file(1, 2), file(9, 3)}, true},
	} {
		assert.Equal(t, c.want, copiedBack(&checkpoint.Set{Files: c.files}), c)
	}
}

func TestSpan(t *testing.T) {
	var s durationFlag
	for text, want := range map[string]time.Duration{"7d": 168 * time.Hour, "1.5d": 36 * time.Hour, "90s": 90 * time.Second} {
		require.NoError(t, s.Set(text))
		assert.Equal(t, want, time.Duration(s))
	}
	for _, text := range []string{"", "d", "-1d", "7", "0s", "1e9d"} {
		assert.Error(t, s.Set(text), text)
	}
}

func TestPace(t *testing.T) {
	for text, want := range map[string]pace{"1": {count: 1}, "10": {count: 10}, "30m": {time: 30 * time.Minute}} {
		got, err := parsePace(text)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, text := range []string{"", "0", "-1", "-1s", "often"} {
		_, err := parsePace(text)
		assert.Error(t, err, text)
	}
}

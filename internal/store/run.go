package store

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"

	"nvmecr/nvmf"
)

// NewRun returns the id of a new run. It is a UUID of version 7, which begins with the time, so that ids of later
// runs are greater. The id is greater than last, the id of the previous run, also if the clock was set back.
func NewRun(last uuid.UUID) (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.Nil, fmt.Errorf("id of the run: %w", err)
	}
	const timeShift = 16 // milliseconds are the first 48 bits
	if before := binary.BigEndian.Uint64(last[:]) >> timeShift; before >= binary.BigEndian.Uint64(id[:])>>timeShift {
		low := binary.BigEndian.Uint64(id[:]) & (1<<timeShift - 1)
		binary.BigEndian.PutUint64(id[:], (before+1)<<timeShift|low)
	}
	return id, nil
}

// reservationKey returns the reservation key of a run. Keys have the order of run ids.
func reservationKey(run uuid.UUID) nvmf.ReservationKey {
	return nvmf.ReservationKey(binary.BigEndian.Uint64(run[:]))
}

// startOf returns the start time of a run.
func startOf(run uuid.UUID) time.Time { return time.Unix(run.Time().UnixTime()) }

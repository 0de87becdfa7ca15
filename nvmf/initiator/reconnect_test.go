package initiator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
)

// lagging is a context that ends some time after its deadline.
type lagging struct {
	context.Context
	deadline time.Time
}

func (l lagging) Deadline() (time.Time, bool) { return l.deadline, true }

// TestReconnectTellsTheReason checks that the error of a last attempt that had no time
// left does not hide the error of the attempts before it.
func TestReconnectTellsTheReason(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lag := lagging{ctx, time.Now().Add(5 * time.Millisecond)}
	attempts := 0
	err := initiator.Reconnect(lag, nvmf.TransportID{}, func() error {
		if attempts++; attempts == 1 {
			return nvmf.ErrAuthentication
		}
		time.Sleep(time.Until(lag.deadline))
		if attempts == 3 {
			cancel()
		}
		return errors.New("no time was left")
	})
	assert.ErrorIs(t, err, nvmf.ErrAuthentication)
	assert.ErrorIs(t, err, context.Canceled)
}

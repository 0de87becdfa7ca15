//go:build !spdk

package spdk

import (
	"context"
	"fmt"

	"nvmecr/nvmf"
)

// Version returns an empty string: the program was built without SPDK.
func Version() string { return "" }

// Open fails: the program was built without SPDK.
func Open(_ context.Context, id nvmf.TransportID, _ Options) (nvmf.Reserver, error) {
	return nil, fmt.Errorf("opening %s: %w: this program was built without SPDK; "+
		"install SPDK so that pkg-config finds it, and build with `make SPDK=1`", id, nvmf.ErrUnsupported)
}

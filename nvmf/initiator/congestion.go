package initiator

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// SetCongestion chooses the congestion control of a TCP socket: the one named;
// the system's own for "system"; for "" cubic, or reno where there is none. What
// systems choose may be BBR, whose pacing costs half the bandwidth. Only one that
// was asked for by name must exist.
func SetCongestion(fd int, name string) error {
	switch name {
	case "system":
	case "":
		if unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") != nil {
			// Without reno either, the system's own choice is what there is.
			_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		}
	default:
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
			return fmt.Errorf("congestion control %q: %w", name, err)
		}
	}
	return nil
}

package initiator

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// SetCongestion sets the congestion control of a TCP socket. name is the name of an
// algorithm, which must exist, or "system" for the default of the system. An empty name
// means cubic, or reno if the kernel has no cubic. The default of some systems is BBR,
// whose pacing halves the bandwidth.
func SetCongestion(fd int, name string) error {
	switch name {
	case "system":
	case "":
		if unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") != nil {
			// If reno is missing, too, the default of the system stays.
			_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		}
	default:
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
			return fmt.Errorf("congestion control %q: %w", name, err)
		}
	}
	return nil
}

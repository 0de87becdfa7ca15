package command

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	"nvmecr/internal/config"
	"nvmecr/internal/preload"
)

// Other hosts of a job reach the index of its tree by TCP. nvmecr run creates the socket, because the job's
// environment has to name its addresses and secret. nvmecr serve inherits the socket as descriptor indexSocket.
const indexSocket = 3

// listenForTree creates the socket, and sets its addresses and a new secret in cfg. It returns nil if there is no
// tree, or if the job is confined to this host.
func listenForTree(cfg *config.Config) (*os.File, error) {
	cfg.Index = nil
	if cfg.View != config.ViewJob || !slices.ContainsFunc(cfg.Targets, preload.Remote) {
		return nil, nil
	}
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, fmt.Errorf("socket of the index of the job's files: %w", err)
	}
	defer l.Close() // File duplicates the descriptor
	if _, err := rand.Read(cfg.IndexSecret[:]); err != nil {
		return nil, err
	}
	tcp := l.(*net.TCPListener)
	cfg.Index = addresses(cfg, tcp.Addr().(*net.TCPAddr).Port)
	return tcp.File()
}

// addresses returns the addresses of this host from which it reaches the targets: other hosts of the job can reach
// them, too.
func addresses(cfg *config.Config, port int) (list []string) {
	for _, t := range cfg.Targets {
		if !preload.Remote(t) {
			continue
		}
		conn, err := net.Dial("udp", net.JoinHostPort(t.Address, "1")) // connect only: nothing is sent
		if err != nil {
			continue
		}
		at := net.JoinHostPort(conn.LocalAddr().(*net.UDPAddr).IP.String(), strconv.Itoa(port))
		_ = conn.Close()
		if !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	return list
}

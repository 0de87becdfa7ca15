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

// The index of a job's tree is reached from other hosts by TCP. The socket is made here, before the job has its environment, which
// names its addresses and the secret; nvmecr serve has it as descriptor indexSocket.
const indexSocket = 3

// listenForTree makes the socket, where there is a tree and other hosts may be in the job: else it is nil. The settings then
// have its addresses and a new secret.
func listenForTree(cfg *config.Config) (*os.File, error) {
	cfg.Index = nil
	if cfg.View != config.ViewJob || !slices.ContainsFunc(cfg.Targets, preload.Remote) {
		return nil, nil
	}
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, fmt.Errorf("socket of the index of the job's files: %w", err)
	}
	defer l.Close() // there is a copy
	if _, err := rand.Read(cfg.IndexSecret[:]); err != nil {
		return nil, err
	}
	tcp := l.(*net.TCPListener)
	cfg.Index = addresses(cfg, tcp.Addr().(*net.TCPAddr).Port)
	return tcp.File()
}

// addresses are those of this host by which it reaches the targets: the job's other hosts reach them, too.
func addresses(cfg *config.Config, port int) (list []string) {
	for _, t := range cfg.Targets {
		if !preload.Remote(t) {
			continue
		}
		conn, err := net.Dial("udp", net.JoinHostPort(t.Address, "1")) // nothing is sent
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

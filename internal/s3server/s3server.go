// Package s3server starts an object store for tests: the Versity S3 gateway, which serves a directory. It is a module of its own
// (versitygw/go.mod), which no program of nvmecr links: `make build/versitygw` builds it.
package s3server

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"
)

// Keys and bucket of a server.
const (
	Bucket = "checkpoints"
	Key    = "nvmecr"
	Secret = "not-a-secret"
	Region = "us-east-1"
)

// A Server runs until the test ends.
type Server struct {
	URL    string
	Client *minio.Client
}

// Environ returns the variables for a client.
func (s *Server) Environ() []string {
	return []string{"AWS_ENDPOINT_URL=" + s.URL, "AWS_ACCESS_KEY_ID=" + Key, "AWS_SECRET_ACCESS_KEY=" + Secret, "AWS_REGION=" + Region}
}

// Start starts a server with an empty bucket. It skips the test if the server has not been built.
func Start(t testing.TB) *Server {
	program, err := find()
	if err != nil {
		t.Skip("there is no object store to test with: make build/versitygw builds one, in some minutes")
	}
	for {
		s, err := start(t, program)
		if !errors.Is(err, errEnded) {
			require.NoError(t, err)
			return s
		}
		t.Log("the port was taken by somebody else")
	}
}

// find returns the server program that make has built.
func find() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "CONTRIBUTING.md")); err == nil || dir == "/" {
			break
		}
	}
	program := filepath.Join(dir, "build", "versitygw")
	_, err = os.Stat(program)
	return program, err
}

var errEnded = errors.New("the server has ended")

func start(t testing.TB, program string) (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	root, side := t.TempDir(), t.TempDir()
	cmd := exec.Command(program, "--port", address, "--access", Key, "--secret", Secret, "--region", Region, "--quiet", "posix", "--sidecar", side, root)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	client, err := minio.New(address, &minio.Options{Creds: credentials.NewStaticV4(Key, Secret, ""), Region: Region})
	if err != nil {
		return nil, err
	}
	for {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return &Server{"http://" + address, client}, client.MakeBucket(context.Background(), Bucket, minio.MakeBucketOptions{})
		}
		select {
		case <-ended:
			return nil, errEnded
		case <-time.After(20 * time.Millisecond):
		}
	}
}

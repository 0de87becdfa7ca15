package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/tlspsk"
)

// Secrets are read from files, never from arguments or the environment, which other users of the machine can see, or
// the log of a launcher. Errors contain nothing of a file's content.

// maxSecretFile is far larger than any key file.
const maxSecretFile = 1 << 20

// Secrets reads the files of --dhchap-secret and --dhchap-ctrl-secret. A key that is not configured is zero.
func (c *Config) Secrets() (keys dhchap.Keys, err error) {
	for _, f := range []struct {
		flag, path string
		to         *dhchap.Secret
	}{{"dhchap-secret", c.Secret, &keys.Host}, {"dhchap-ctrl-secret", c.ControllerSecret, &keys.Controller}} {
		if f.path == "" {
			continue
		}
		if *f.to, err = readSecret(f.path); err != nil {
			return dhchap.Keys{}, fmt.Errorf("--%s: %w", f.flag, err)
		}
	}
	return keys, nil
}

// TLSPSK reads the file of --tls-psk. Without one the key is zero.
func (c *Config) TLSPSK() (key tlspsk.Key, err error) {
	if c.TLSKey == "" {
		return key, nil
	}
	if key, err = readKey(c.TLSKey, tlspsk.Parse, ""); err != nil {
		return tlspsk.Key{}, fmt.Errorf("--tls-psk: %w", err)
	}
	return key, nil
}

// readSecret reads a file of one secret.
func readSecret(path string) (dhchap.Secret, error) {
	return readKey(path, dhchap.ParseSecret, ", such as `nvmecr keygen` prints")
}

// readKey reads a file of one key.
func readKey[K any](path string, parse func(text string) (K, error), such string) (key K, err error) {
	lines, err := secretLines(path)
	if err != nil {
		return key, err
	}
	if len(lines) != 1 || len(lines[0].words) != 1 {
		return key, fmt.Errorf("%s has to hold one key and nothing else%s", path, such)
	}
	if key, err = parse(lines[0].words[0]); err != nil {
		return key, fmt.Errorf("%s, line %d: %w", path, lines[0].number, err)
	}
	return key, nil
}

// ReadKeys reads a target's key file: lines of a host NQN, the host's key and, for bidirectional authentication, the
// key of the target.
func ReadKeys(path string) (map[string]dhchap.Keys, error) { return readHostKeys(path, parseKeys) }

// ReadKeysFrom reads the content of such a file from r, such as a pipe.
func ReadKeysFrom(r io.Reader) (map[string]dhchap.Keys, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxSecretFile))
	if err != nil {
		return nil, err
	}
	lines, err := linesOf(b)
	if err != nil {
		return nil, err
	}
	return hostKeys("what was read", lines, parseKeys)
}

// ReadPSKs reads a target's file of keys for TLS: lines of a host NQN and its key.
func ReadPSKs(path string) (map[string]tlspsk.Key, error) {
	return readHostKeys(path, func(words []string) (key tlspsk.Key, err error) {
		if len(words) != 1 {
			return key, errors.New("it has to be HOSTNQN KEY")
		}
		return tlspsk.Parse(words[0])
	})
}

// readHostKeys reads a file of lines that begin with a host's NQN; parse is for the
// words behind.
func readHostKeys[K any](path string, parse func(words []string) (K, error)) (map[string]K, error) {
	lines, err := secretLines(path)
	if err != nil {
		return nil, err
	}
	return hostKeys(path, lines, parse)
}

// hostKeys parses the lines of a key file. path is used in errors.
func hostKeys[K any](path string, lines []secretLine, parse func(words []string) (K, error)) (map[string]K, error) {
	all := map[string]K{}
	var err error
	for _, l := range lines {
		nqn := l.words[0]
		// The word in place of the NQN may be a key, and must not be shown.
		if err = CheckNQN(nqn); err != nil {
			err = errors.New("it does not begin with an NQN such as nqn.2014-08.org.example:host")
		} else if _, twice := all[nqn]; twice {
			err = fmt.Errorf("host %s has a line already", nqn)
		} else {
			all[nqn], err = parse(l.words[1:])
		}
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, l.number, err)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no line with a host's NQN and key: nobody could connect", path)
	}
	return all, nil
}

func parseKeys(words []string) (keys dhchap.Keys, err error) {
	if len(words) < 1 || len(words) > 2 {
		return keys, errors.New("it has to be HOSTNQN HOSTKEY, or HOSTNQN HOSTKEY TARGETKEY")
	}
	if keys.Host, err = dhchap.ParseSecret(words[0]); err != nil {
		return keys, fmt.Errorf("the host's key: %w", err)
	}
	if len(words) == 2 {
		if keys.Controller, err = dhchap.ParseSecret(words[1]); err != nil {
			return keys, fmt.Errorf("the target's key: %w", err)
		}
	}
	return keys, nil
}

type secretLine struct {
	number int
	words  []string
}

// secretLines returns the lines of a protected file, without comments and empty lines.
func secretLines(path string) ([]secretLine, error) {
	b, err := readGuarded(path)
	if err != nil {
		return nil, err
	}
	return linesOf(b)
}

func linesOf(b []byte) (lines []secretLine, err error) {
	scan := bufio.NewScanner(bytes.NewReader(b))
	scan.Buffer(nil, maxSecretFile+1) // longer than any valid line
	for n := 1; scan.Scan(); n++ {
		words := strings.Fields(scan.Text())
		// A comment begins at the start of a word, since an NQN may contain the sign.
		if at := slices.IndexFunc(words, func(w string) bool { return w[0] == '#' }); at >= 0 {
			words = words[:at]
		}
		if len(words) > 0 {
			lines = append(lines, secretLine{n, words})
		}
	}
	return lines, scan.Err()
}

// isKey reports whether a path is a key in text form, perhaps made absolute, which a user has given instead of a
// file.
func isKey(path string) bool {
	return strings.Contains(path, "DHHC-1:") || strings.Contains(path, "NVMeTLSkey-1:")
}

// readGuarded reads a file that only its owner, who is this user or root, can read or change.
func readGuarded(path string) ([]byte, error) {
	if isKey(path) { // do not show it
		return nil, errors.New("this is a key itself, where the name of a file that holds one is wanted; " +
			"others may have seen it in the command line: make a new one")
	}
	// O_NONBLOCK: a pipe without a writer must not block.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	mode, stat := info.Mode(), info.Sys().(*syscall.Stat_t)
	switch {
	case !mode.IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to user %d, who could change the key; it has to be yours or root's", path, stat.Uid)
	case mode.Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s has mode %04o, with which others get at the key; `chmod 600 %s`", path, mode.Perm(), path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if len(b) > maxSecretFile {
		return nil, fmt.Errorf("%s is larger than a file of keys can be", path)
	}
	return b, err
}

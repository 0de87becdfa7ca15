package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

var (
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\[[^\[\]]*\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	named   = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md\b`)
)

// files lists the files below the root with one of the suffixes, except for build outputs and test data.
func files(t *testing.T, suffixes ...string) []string {
	t.Helper()
	var found []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && slices.Contains([]string{".git", "build", "bin", "testdata"}, name) {
			return filepath.SkipDir
		}
		for _, suffix := range suffixes {
			if !d.IsDir() && strings.HasSuffix(path, suffix) {
				found = append(found, path)
			}
		}
		return nil
	}))
	require.NotEmpty(t, found)
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// prose returns the text of a page without its code blocks.
func prose(t *testing.T, path string) string {
	return fence.ReplaceAllString(read(t, path), "")
}

// anchor returns the fragment of a heading in web front ends of Git: lower case, blanks as hyphens, without punctuation.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
}

func anchors(t *testing.T, path string) []string {
	var all []string
	for _, h := range heading.FindAllStringSubmatch(prose(t, path), -1) {
		all = append(all, anchor(h[1]))
	}
	return all
}

func TestAnchor(t *testing.T) {
	for heading, want := range map[string]string{
		"Tests":                       "tests",
		"RDMA, PCIe and SPDK":         "rdma-pcie-and-spdk",
		"`--durability=close`":        "--durabilityclose",
		"microfs (file system)":       "microfs-file-system",
		"Is it all still there?":      "is-it-all-still-there",
		"A namespace: `x`, `y`":       "a-namespace-x-y",
		"Block device (`nvmf`)":       "block-device-nvmf",
		"This one: open(2), and more": "this-one-open2-and-more",
	} {
		assert.Equal(t, want, anchor(heading))
	}
}

// TestLinks checks that every relative link of every page leads to a file or folder, and its fragment to a heading there.
func TestLinks(t *testing.T) {
	links := 0
	for _, page := range files(t, ".md") {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(prose(t, page), "code"), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			path, fragment, _ := strings.Cut(m[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if !assert.FileExistsf(t, target, "%s: link to %s", page, m[1]) {
				continue
			}
			if fragment != "" {
				assert.Containsf(t, anchors(t, target), fragment, "%s: link to %s", page, m[1])
			}
		}
	}
	assert.Greater(t, links, 50, "links found")
}

// TestPagesNamedInTheSource checks that pages named in comments, messages and build files exist.
func TestPagesNamedInTheSource(t *testing.T) {
	pages := 0
	for _, file := range files(t, ".go", ".c", ".h", ".sh", ".txt", ".mk", "Makefile") {
		for _, page := range named.FindAllString(read(t, file), -1) {
			pages++
			assert.FileExistsf(t, filepath.Join(root, page), "%s names it", file)
		}
	}
	assert.Greater(t, pages, 5, "names found")
}

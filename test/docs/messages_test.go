package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	quoted  = regexp.MustCompile("^\\| `([^`]+)` \\|")
	verb    = regexp.MustCompile(`%[-+#0-9.]*[*a-zA-Z]`)
	cString = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*`)
)

// gap stands for a variable part of a message.
const gap = "\x00"

// literals returns the string literals of the Go programs, with + joined, and of the preload library.
func literals(t *testing.T) []string {
	var all []string
	add := func(text string) { all = append(all, verb.ReplaceAllString(text, gap)) }
	for _, path := range files(t, ".go") {
		if strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/test/") || strings.Contains(path, "/bench/") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			if text, ok := constant(e); ok {
				add(text)
				return false
			}
			return true
		})
	}
	for _, path := range files(t, ".c") {
		if strings.Contains(path, "posixshim/shim/") || strings.Contains(path, "mpiwrap/") {
			for _, m := range cString.FindAllString(read(t, path), -1) {
				add(strings.Join(strings.FieldsFunc(m, func(r rune) bool { return r == '"' }), ""))
			}
		}
	}
	require.NotEmpty(t, all)
	return all
}

// constant returns the value of a string literal, or of a concatenation of them.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.BinaryExpr:
		x, ok := constant(e.X)
		y, also := constant(e.Y)
		return x + y, ok && also && e.Op == token.ADD
	case *ast.ParenExpr:
		return constant(e.X)
	}
	return "", false
}

// says reports whether a literal contains the pieces of a message in order.
func says(literal string, pieces []string) bool {
	for _, piece := range pieces {
		_, after, found := strings.Cut(literal, piece)
		if !found {
			return false
		}
		literal = after
	}
	return true
}

// TestQuotedMessagesAreInTheSource checks that every message quoted in docs/troubleshooting.md is in the source, and is quoted once.
func TestQuotedMessagesAreInTheSource(t *testing.T) {
	texts := literals(t)
	seen := map[string]bool{}
	for _, line := range strings.Split(read(t, root+"/docs/troubleshooting.md"), "\n") {
		m := quoted.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		message := m[1]
		assert.False(t, seen[message], "%s: quoted twice", message)
		seen[message] = true
		var pieces []string
		length := 0
		for _, piece := range strings.Split(message, "...") {
			if piece != "" {
				pieces = append(pieces, piece)
				length += len(piece)
			}
		}
		assert.GreaterOrEqual(t, length, 12, "%s: too little to recognise a message by", message)
		found := false
		for _, text := range texts {
			found = found || says(text, pieces)
		}
		assert.True(t, found, "no program says: %s", message)
	}
	assert.Greater(t, len(seen), 50, "messages found")
}

func TestSays(t *testing.T) {
	for _, tc := range []struct {
		literal, message string
		want             bool
	}{
		{"store %q is in use by %v; wait", "store ... is in use by ...; wait", true},
		{"store %q is in use", "store ... is in use by ...", false},
		{"a %s b", "b ... a", false},
		{"100% of it", "100% of it", true},
	} {
		assert.Equal(t, tc.want, says(verb.ReplaceAllString(tc.literal, gap), strings.Split(tc.message, "...")), "%v", tc)
	}
}

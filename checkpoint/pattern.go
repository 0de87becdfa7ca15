package checkpoint

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// The placeholders of a pattern: the part of a path in which sets differ.
const (
	stepPlace = "{step}"
	namePlace = "{name}"
)

// ErrPattern is wrapped by errors about an invalid pattern.
var ErrPattern = errors.New("not a pattern of checkpoints")

// stepMark replaces the number while a path is matched: no path contains it.
const stepMark = "\x00"

// A pattern is a parsed pattern.
type pattern struct {
	paths *regexp.Regexp
	named bool // it has {name}, not {step}
}

// parsePattern parses a pattern. Its errors wrap ErrPattern.
func parsePattern(text string) (*pattern, error) {
	p := &pattern{named: strings.Contains(text, namePlace)}
	if strings.Count(text, stepPlace)+strings.Count(text, namePlace) != 1 {
		return nil, fmt.Errorf("%q is %w: it must have %s or %s, once, in the place of what differs, as in melt.%s.*",
			text, ErrPattern, stepPlace, namePlace, stepPlace)
	}
	var re strings.Builder
	re.WriteString(`(?s)^/`)
	for rest := strings.TrimPrefix(text, "/"); rest != ""; {
		token, meaning := rest[:1], ""
		switch {
		case strings.HasPrefix(rest, stepPlace):
			token, meaning = stepPlace, stepMark
		case strings.HasPrefix(rest, namePlace):
			token, meaning = namePlace, `([^/]+?)`
		case strings.HasPrefix(rest, "**"):
			token, meaning = "**", `.*?`
		case token == "*":
			meaning = `[^/]*?`
		case token == "?":
			meaning = `[^/]`
		default:
			token = rest[:1+strings.IndexAny(rest[1:]+"*", "*?{")]
			meaning = regexp.QuoteMeta(token)
		}
		re.WriteString(meaning)
		rest = rest[len(token):]
	}
	re.WriteString(`$`)
	var err error
	if p.paths, err = regexp.Compile(re.String()); err != nil {
		return nil, fmt.Errorf("%q is %w: %w", text, ErrPattern, err)
	}
	return p, nil
}

// find returns the position of the step or name in the path.
func (p *pattern) find(path string) (at span, ok bool) {
	if p.named {
		m := p.paths.FindStringSubmatchIndex(path)
		if m == nil {
			return span{}, false
		}
		return span{m[2], m[3]}, true
	}
	for _, n := range numbers(path) {
		if p.paths.MatchString(path[:n.start] + stepMark + path[n.end:]) {
			return n.span, true
		}
	}
	return span{}, false
}

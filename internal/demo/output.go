package demo

import (
	"strings"
	"sync"
)

// Output collects what a process prints. It is safe for concurrent use.
type Output struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write appends p.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// Lines returns the complete lines so far.
func (o *Output) Lines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := strings.Split(o.text.String(), "\n")
	return lines[:len(lines)-1]
}

// Tail returns at most the last n lines.
func (o *Output) Tail(n int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := strings.SplitAfter(o.text.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-n-1):], "")
}

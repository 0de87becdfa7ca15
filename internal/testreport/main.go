// Command testreport runs `go test` several times and ends with one summary: how many tests
// passed, failed and were skipped, and why each was skipped.
//
//	testreport "./..." "-race ./oplog ./microfs"
//
// Each argument has the arguments of one `go test`; `-C DIR` at the front of them is the
// directory to run it in. With -levels N the report names each test when it begins and when
// it ends, and its subtests down to the Nth level, for tests that take long.
//
// The report names a package when the package ends, followed by the output of its failed
// tests, and by how far a fuzz test got. The exit status is 1 if any test failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	var r report
	start := time.Now()
	for _, args := range r.options(os.Args[1:]) {
		began := time.Now()
		if err := r.run(strings.Fields(args)); err != nil {
			fmt.Fprintln(os.Stderr, "testreport:", err)
			r.broken++
		}
		fmt.Println("took", time.Since(began).Round(time.Second))
	}
	r.summary(os.Stdout, time.Since(start))
	if r.failed+r.broken > 0 {
		os.Exit(1)
	}
}

// event is one line of `go test -json` (see `go doc test2json`).
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
	// ImportPath names the package of build output.
	ImportPath string
}

type test struct{ pkg, name string }

// report has the results of the runs so far.
type report struct {
	levels         int // levels of tests that are named
	passed, failed int
	broken         int // packages and runs that failed outside of a test
	skips          []skip
	// timeUp is true if the run in progress ended as described at timeUp.
	timeUp bool
}

type skip struct {
	test
	reason string
}

// options parses its options at the beginning of args. The rest has flags of go test, which package flag must not see.
func (r *report) options(args []string) []string {
	if len(args) > 1 && args[0] == "-levels" {
		if n, err := strconv.Atoi(args[1]); err == nil {
			r.levels = n
			return args[2:]
		}
	}
	return args
}

// run runs `go test` with args and adds the results.
func (r *report) run(args []string) error {
	fmt.Println("go test", strings.Join(args, " "))
	cmd := exec.Command("go", goTest(args)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	before := r.failed + r.broken
	r.timeUp = false
	if err := r.read(out); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil && r.failed+r.broken == before && !r.timeUp {
		return fmt.Errorf("go test %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// goTest returns the arguments of the go command. For another module they begin with -C and its directory, which must be first.
func goTest(args []string) []string {
	first := 0
	if len(args) > 1 && args[0] == "-C" {
		first = 2
	}
	return slices.Concat([]string{"test"}, args[:first], []string{"-json"}, args[first:])
}

// read reads the events of `go test -json`.
func (r *report) read(events io.Reader) error {
	output := make(map[test][]string)
	failures := make(map[string]bool) // packages with a failed test
	in := bufio.NewReader(events)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var e event
		if json.Unmarshal(line, &e) != nil {
			os.Stdout.Write(line) // not an event: a message of the go command
			continue
		}
		r.add(e, output, failures)
	}
}

func (r *report) add(e event, output map[test][]string, failures map[string]bool) {
	t := test{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Print(e.Output)
	case "output":
		output[t] = append(output[t], e.Output)
		return
	case "run":
		fmt.Print(r.line(e))
	case "pass", "fail", "skip":
		if e.Action == "fail" && (timeUp(t.name, output[t]) || e.Test == "" && r.timeUp && !failures[e.Package]) {
			e.Action, r.timeUp = "pass", true
		}
		if e.Test == "" {
			r.endPackage(e, output[t], failures[e.Package])
		} else {
			r.endTest(e.Action, t, output[t])
			fmt.Print(r.line(e))
			failures[e.Package] = failures[e.Package] || e.Action == "fail"
		}
		delete(output, t)
	}
}

func (r *report) endTest(action string, t test, output []string) {
	switch action {
	case "pass":
		r.passed++
		if n := len(output); strings.HasPrefix(t.name, "Fuzz") {
			for n--; n >= 0 && !strings.Contains(output[n], "execs: "); n-- {
			}
			if n >= 0 {
				fmt.Print(t.name, ": ", strings.TrimPrefix(output[n], "fuzz: "))
			}
		}
	case "skip":
		r.skips = append(r.skips, skip{t, skipReason(output)})
	case "fail":
		r.failed++
		fmt.Print(strings.Join(output, ""))
	}
}

// line describes the start or the end of a test, if it has to be named.
func (r *report) line(e event) string {
	switch {
	case strings.Count(e.Test, "/") >= r.levels:
		return ""
	case e.Action == "run":
		return fmt.Sprintf("%-4s %s\n", e.Action, e.Test)
	}
	return fmt.Sprintf("%-4s %s  %.1fs\n", e.Action, e.Test, e.Elapsed)
}

// timeUp reports whether a fuzz test failed only because its time ended in the middle of an input: https://go.dev/issue/75804, fixed in
// Go 1.27.
func timeUp(test string, output []string) bool {
	all := strings.Join(output, "")
	return strings.HasPrefix(test, "Fuzz") && strings.HasSuffix(strings.TrimSpace(all), "context deadline exceeded") &&
		strings.Count(all, "--- FAIL") == 1 && !strings.Contains(all, "Failing input")
}

// endPackage names the package. Output outside of its tests is printed only if the package failed there (a panic, a build error, a
// time-out).
func (r *report) endPackage(e event, output []string, testFailed bool) {
	switch e.Action {
	case "fail":
		if !testFailed {
			r.broken++
			fmt.Print(strings.Join(output, ""))
		}
		fmt.Printf("FAIL %s  %.1fs\n", e.Package, e.Elapsed)
	case "pass":
		fmt.Printf("ok   %s  %.1fs\n", e.Package, e.Elapsed)
	}
}

// skipReason returns the message of a skipped test, without lines of the framework and the source position.
func skipReason(output []string) string {
	var words []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") || line == "" {
			continue
		}
		if _, said, ok := strings.Cut(line, ".go:"); ok {
			if _, said, ok = strings.Cut(said, ": "); ok {
				line = said
			}
		}
		words = append(words, line)
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}

func (r *report) summary(w io.Writer, took time.Duration) {
	for _, s := range r.skips {
		fmt.Fprintf(w, "skipped: %s %s: %s\n", s.pkg, s.name, s.reason)
	}
	if r.broken > 0 {
		fmt.Fprintf(w, "%d packages or runs failed outside of a test\n", r.broken)
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped in %s\n",
		r.passed, r.failed, len(r.skips), took.Round(time.Second))
}

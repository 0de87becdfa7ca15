// Command bench measures what the project promises and prints each number
// beside its goal. Both sides of a ratio are measured in turns in one run:
// absolute figures of different runs, let alone machines, do not compare.
//
// It is run by `make bench`, which builds bin/nvmecr first. Nothing is
// asserted: the exit status only says whether everything could be measured.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"nvmecr/internal/demo"
)

func main() {
	var b bench
	flag.StringVar(&b.nvmecr, "nvmecr", "bin/nvmecr", "the command")
	flag.IntVar(&b.ranks, "ranks", 4, "ranks, and queues of the raw side")
	flag.IntVar(&b.mib, "mib", 128, "MiB written and read by each rank in a round")
	flag.IntVar(&b.rounds, "rounds", 9, "rounds; the median counts")
	flag.StringVar(&b.only, "only", "", "measure only bandwidth, startup, memory or recovery")
	raw := flag.String("raw", "", "be a process of the raw side on this namespace (internal)")
	slot := flag.Int("slot", 0, "which of the raw processes (internal)")
	flag.Parse()

	err := error(nil)
	if *raw != "" {
		err = serveRaw(*raw, *slot, b.ranks, b.mib)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		err = b.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run of all measurements.
type bench struct {
	nvmecr             string
	ranks, mib, rounds int
	only               string // the one measurement wanted

	stage *demo.Stage
	app   string // testdata/ckpt.c, compiled
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.nvmecr, err = filepath.Abs(b.nvmecr); err != nil {
		return err
	}
	if b.stage, err = demo.NewStage(b.nvmecr); err != nil {
		return err
	}
	defer func() {
		if e := b.stage.Close(); err == nil {
			err = e
		}
	}()
	if b.app, err = compile(b.stage.Dir); err != nil {
		return err
	}
	fmt.Printf("%s, %s, %d cores, %s\n", kernel(), runtime.Version(), runtime.NumCPU(), congestion())
	for _, m := range []struct {
		name string
		run  func(context.Context) error
	}{{"bandwidth", b.bandwidth}, {"startup", b.startup}, {"memory", b.memory}, {"recovery", b.recovery}} {
		if b.only != "" && b.only != m.name {
			continue
		}
		if err := m.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

// row prints one result beside its goal.
func row(what, measured, goal string) {
	fmt.Printf("%-58s %14s   goal %s\n", what, measured, goal)
}

func kernel() string {
	var u syscall.Utsname
	if syscall.Uname(&u) != nil {
		return "Linux"
	}
	var s []byte
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		s = append(s, byte(c))
	}
	return "Linux " + string(s)
}

// congestion names the system's TCP congestion control: both sides choose
// their own per socket, but a reader of the numbers wants to know.
func congestion() string {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return "TCP congestion control not known"
	}
	return "TCP congestion control of the system " + string(b[:len(b)-1])
}

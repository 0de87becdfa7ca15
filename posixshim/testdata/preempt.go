//go:build ignore

// Command preempt prints whether the garbage collector had to wait for a loop without calls, which only a signal can
// interrupt.
package main

import (
	"fmt"
	"runtime"
	"sync/atomic"
)

func main() {
	var begun, ended atomic.Bool
	runtime.GOMAXPROCS(2)
	go func() {
		begun.Store(true)
		for x := uint64(1); x != 0; x <<= 1 {
			for range uint64(1) << 21 {
				begun.Store(true)
			}
		}
		ended.Store(true)
	}()
	for !begun.Load() {
		runtime.Gosched()
	}
	runtime.GC()
	fmt.Println(ended.Load())
}

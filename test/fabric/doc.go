// Package fabric holds tests of the whole storage stack over a wire that
// fails: microfs on the NVMe/TCP initiator, a proxy that damages what passes
// (nvmf/wiretest), and the target.
//
// Every test runs one workload with a model of what was acknowledged beside
// it, does something to the wire or the target at one moment of it, and asks:
// did the application see a pause, or the right errno, and is everything
// acknowledged there afterwards, for it and for a mount over a good wire?
//
// By default each test tries a sample of the moments and takes seconds.
// With -all, as in
//
//	go test ./test/fabric -args -all
//
// it tries all.
package fabric

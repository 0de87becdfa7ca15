// Package fabric has fault-injection tests of the whole storage stack: microfs on
// the NVMe/TCP initiator, a proxy that injects faults (nvmf/wiretest), and the target.
//
// Every test runs one workload, with a model of what was acknowledged, and injects
// one fault into the connection or the target at one moment. It checks that the
// application saw a pause or the right errno, and that everything acknowledged is
// there afterwards, for the application and for a new mount without faults.
//
// By default each test tries a sample of the moments and takes seconds.
// With -all, as in
//
//	go test ./test/fabric -args -all
//
// it tries all.
package fabric

// Package wiretest injects faults into NVMe/TCP connections, for tests. It is a proxy
// on loopback between any host and any target. The proxy parses both byte streams into
// PDUs, and a script decides what happens to each PDU.
//
//	host --> Proxy.Addr --> script(PDU) --> Proxy.Target --> target
//	host <--                script(PDU) <--                  target
//
// A [Script] sees every PDU of every connection, in the order in which they
// reach the proxy, and answers with an [Action]: pass it, cut the connection
// in the middle of it, end it in order there, delay it, damage a byte, send it
// behind the next one, drop it, answer it in the target's place, change the
// status of a response, hold everything still, or keep it and deliver it late,
// when the host has long reconnected. [At] is the script that strikes PDU
// number n of one direction: a test runs its workload for n = 1, 2, 3, ...
// until a run ends in which nothing was struck.
//
// Numbers count the PDUs of a direction over all connections since the script
// was set. Set it once the device is open and only what the workload itself
// sends is counted; set it before, and so are connection and identification.
//
// Beside the script the whole target can be taken down and brought back
// ([Proxy.Down], [Proxy.Up]), replaced ([Proxy.SetTarget]), and frozen
// ([Proxy.Freeze], [Proxy.Thaw]).
//
// Bytes that are no PDU (a length that cannot be) are passed on as they are,
// and so is everything behind them.
//
// # Concurrency and locks
//
// All methods of a Proxy are safe for concurrent use. Each connection has one
// goroutine for each direction. Proxy.mu guards its state, and is held while a
// script runs: a script must not call the Proxy. lane.mu, of one direction of
// one connection, is held while a PDU is written; neither is taken with the
// other held.
package wiretest

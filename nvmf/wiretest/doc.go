// Package wiretest injects faults into NVMe/TCP connections, for tests. It is a proxy
// on loopback between any host and any target. The proxy parses both byte streams into
// PDUs, and a script decides what happens to each PDU.
//
//	host --> Proxy.Addr --> script(PDU) --> Proxy.Target --> target
//	host <--                script(PDU) <--                  target
//
// The proxy calls a [Script] for every PDU of every connection, in the order in
// which it receives them. The script returns an [Action]: pass the PDU, reset or
// close the connection in the middle of it, delay it, change a byte, send it after
// the next one, drop it, answer it instead of the target, change the status of a
// response, stop all forwarding, or keep the PDU and deliver it after the host has
// reconnected. [At] returns a script with an action for PDU number n of one direction.
// A test runs its workload for n = 1, 2, 3, ... until a run has fewer PDUs than n.
//
// PDUs are numbered for each direction over all connections, from the moment the script
// is set. To count only the PDUs of a workload, a test sets the script after opening
// the device. A script set earlier also counts the PDUs that connect and identify the
// device.
//
// Besides, the whole target can be made unreachable and reachable again
// ([Proxy.Down], [Proxy.Up]), replaced ([Proxy.SetTarget]), and frozen
// ([Proxy.Freeze], [Proxy.Thaw]).
//
// Bytes that are not a PDU, since they have an impossible length, are forwarded
// unchanged, and so are all bytes after them.
//
// # Concurrency and locks
//
// All methods of a Proxy are safe for concurrent use. Each connection has one
// goroutine for each direction. Proxy.mu guards its state, and is held while a
// script runs: a script must not call the Proxy. lane.mu, of one direction of
// one connection, is held while a PDU is written; neither is taken with the
// other held.
package wiretest

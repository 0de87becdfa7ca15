// Package blocktest tests block devices, and tests what is built on them.
//
// [Run] is the conformance suite that every nvmf.Device passes. [Faulty] wraps
// a device and makes it fail as real ones do: errors at a chosen command,
// a cut in the middle of a write, a volatile cache that is lost, a connection
// that breaks while commands are in flight and land late.
package blocktest

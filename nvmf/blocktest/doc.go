// Package blocktest tests block devices, and provides faulty devices for tests of the
// layers above them.
//
// [Run] is a conformance suite for nvmf.Device. [Faulty] wraps a device and injects the
// faults of real devices: errors of a chosen command, power loss in the middle of a
// write, loss of a volatile cache, and loss of the connection with commands in flight
// that are executed late.
package blocktest

// Package spdk_test runs real programs under the preload library with the driver over
// SPDK, which adds threads, descriptors, memory, signal handlers and messages of its
// own to the process. The tests use our target and, where
// NVMECR_TEST_SPDK is the transport id of a namespace that may be overwritten,
// on SPDK's. Where pkg-config does not find SPDK the tests are skipped.
package spdk_test

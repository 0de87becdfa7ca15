// Package spdk_test runs real programs under the preloaded library with the
// driver over SPDK, which brings threads, descriptors, memory, signal handlers
// and messages of its own into the process: on our target and, where
// NVMECR_TEST_SPDK is the transport id of a namespace that may be overwritten,
// on SPDK's. Where pkg-config does not find SPDK the tests are skipped.
package spdk_test

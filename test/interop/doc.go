// Package interop has the interoperability tests: our initiator against the targets of
// Linux and SPDK, our target against the hosts of Linux and SPDK, and the demonstration
// and one tree over their targets. `make interop` runs them, in builds with the tag interop. A test
// whose peer is not installed is skipped, with the reason.
//
//	initiator_test.go    our initiator; peer_test.go, nvmet_test.go, spdk_test.go: at whose targets
//	host_test.go         Linux's host at our target, with authentication
//	spdkhost_test.go     SPDK's initiator at our target, with authentication
//	provision_test.go    nvmecr admin's provisioners
//	driver_test.go       our driver over SPDK, with PCIe and RDMA, in a guest
//	demo_test.go         the demonstration
//	tree_test.go         one tree for all ranks
//	guest                Linux in a virtual machine
//
// NVMECR_SPDK is the directory of SPDK's programs, where they are not in PATH;
// NVMECR_TEST_TARGET the transport id of one more target to test the initiator
// with, whose namespace may be overwritten.
package interop

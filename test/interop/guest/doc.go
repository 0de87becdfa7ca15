// Package guest boots a Linux kernel in a virtual machine (QEMU) and runs
// scripts in it, for tests against the kernel's NVMe over Fabrics. Kernels are
// those that scripts/kernels.sh unpacked; the file system is made of modules of
// the kernel and of programs and libraries of this machine, and is in memory.
//
//	image.go, archive.go   the file system, which the kernel unpacks
//	kernel.go              which modules there are, and what they need
//	guest.go               QEMU, and the channel by which scripts get there
//	agent                  the first process of the guest
//	wire                   what both ends say
//
// The guest has a network of its own, behind QEMU: it reaches this machine's
// 127.0.0.1 as 10.0.2.2 ([Gateway]), and is reached by forwarded ports. With
// KVM it is about as quick as this machine, without several times slower.
package guest

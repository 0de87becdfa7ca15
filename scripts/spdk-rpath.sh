#!/usr/bin/env bash
# spdk-rpath.sh: the linker flags by which a program finds at its start those of SPDK's
# libraries, and of the libraries that come with SPDK, that pkg-config has found for it. It
# fails where pkg-config finds no SPDK.
#
# A build tree of SPDK has an isa-l of its own in another directory than SPDK's libraries.
# Without its path the linker takes the distribution's, which may lack what SPDK calls.
set -euo pipefail

# As in nvmf/spdk/env.go.
libraries=(spdk_nvme spdk_env_dpdk spdk_sock_posix spdk_syslibs)
paths=$(pkg-config --static --libs-only-L "${libraries[@]}" 2>/dev/null)
for path in $paths; do
	printf '%s ' "-Wl,-rpath,${path#-L}"
done

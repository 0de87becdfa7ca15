"""Each rank's own files with numpy and h5py, and MPI-IO from Python (mpi4py), below the directory given."""
import sys

import h5py
import numpy as np
from mpi4py import MPI

top, world = sys.argv[1], MPI.COMM_WORLD
a = np.arange(100000.0) + world.rank
np.save(f"{top}/rank.{world.rank}.npy", a)
with h5py.File(f"{top}/rank.{world.rank}.h5", "w") as f:
    f["a"] = a
with h5py.File(f"{top}/rank.{world.rank}.h5") as f:
    ok = np.array_equal(f["a"][()], np.load(f"{top}/rank.{world.rank}.npy"))
f = MPI.File.Open(MPI.COMM_SELF, f"{top}/rank.{world.rank}.raw", MPI.MODE_CREATE | MPI.MODE_RDWR)
f.Write_at_all(800, a)
b = np.empty_like(a)
f.Read_at_all(800, b)
f.Close()
ok = world.allreduce(ok and np.array_equal(a, b), MPI.LAND)
if world.rank == 0:
    print(world.size, ok)

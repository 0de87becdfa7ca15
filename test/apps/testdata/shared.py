"""Ranks write one HDF5 file together by h5py over MPI-IO, and any number of them reads it: shared.py DIRECTORY write|read"""
import sys

import h5py
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
name, rows = f"{sys.argv[1]}/shared.h5", 1200
want = np.arange(rows * 64.0).reshape(rows, 64)
mine = slice(world.rank, rows, world.size)  # strided
if sys.argv[2] == "write":
    with h5py.File(name, "w", driver="mpio", comm=world) as f:
        for filled in "independent", "collective":
            d = f.create_dataset(filled, want.shape, dtype="f8")
            if filled == "collective":
                with d.collective:
                    d[mine] = want[mine]
            else:
                d[mine] = want[mine]
        f.attrs["writers"] = world.size
with h5py.File(name, "r", driver="mpio", comm=world) as f:
    ok = all(np.array_equal(d[mine], want[mine]) for d in f.values())
    writers = f.attrs["writers"]
if world.allreduce(ok, MPI.LAND) and world.rank == 0:
    print(world.size, "ranks read what", writers, "have written")

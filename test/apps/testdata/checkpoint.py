"""Keeps a checkpoint in the directory given, with numpy, h5py, netCDF4, torch
or sqlite3, and goes on from what it finds there. Prints a step when its
checkpoint is kept, with a number that depends on all steps before."""
import os
import sys

library, top, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.chdir(top)
SIZE = 50000


class Numpy:
    def save(self, step, a):
        import numpy as np

        with open("new.npz", "wb") as f:
            np.savez(f, step=step, a=a)
            f.flush()
            os.fsync(f.fileno())
        os.replace("new.npz", "state.npz")

    def load(self):
        import numpy as np

        with np.load("state.npz") as f:
            return int(f["step"]), f["a"]


class H5py:
    def save(self, step, a):
        import h5py

        with h5py.File("new.h5", "w") as f:
            f["a"] = a
            f.attrs["step"] = step
        os.replace("new.h5", "state.h5")

    def load(self):
        import h5py

        with h5py.File("state.h5") as f:
            return int(f.attrs["step"]), f["a"][()]


class Netcdf:
    def save(self, step, a):
        import netCDF4

        with netCDF4.Dataset("new.nc", "w") as f:
            f.createDimension("x", len(a))
            f.createVariable("a", "f8", ("x",))[:] = a
            f.step = step
        os.replace("new.nc", "state.nc")

    def load(self):
        import netCDF4

        with netCDF4.Dataset("state.nc") as f:
            return int(f.step), f["a"][:].data


class Torch:
    def save(self, step, a):
        import torch

        torch.save({"step": step, "a": torch.from_numpy(a)}, "new.pt")
        os.replace("new.pt", "state.pt")

    def load(self):
        import torch

        state = torch.load("state.pt")
        return state["step"], state["a"].numpy()


class Sqlite:
    """Two rows of which both or none change."""

    def __init__(self):
        import sqlite3

        self.db = sqlite3.connect("state.db")
        self.db.execute("pragma synchronous = full")

    def save(self, step, a):
        with self.db:
            self.db.execute("create table if not exists state (key text primary key, value)")
            self.db.execute("replace into state values ('step', ?)", (step,))
            self.db.execute("replace into state values ('a', ?)", (a.tobytes(),))

    def load(self):
        import numpy as np
        import sqlite3

        try:
            rows = dict(self.db.execute("select key, value from state"))
        except sqlite3.OperationalError as e:
            if "no such table" not in str(e):
                raise
            raise FileNotFoundError from e
        return rows["step"], np.frombuffer(rows["a"]).copy()


import numpy as np  # noqa: E402

keeper = {"numpy": Numpy, "h5py": H5py, "netCDF4": Netcdf, "torch": Torch, "sqlite3": Sqlite}[library]()
try:
    step, a = keeper.load()
    print("from", step, flush=True)
except FileNotFoundError:
    step, a = 0, np.linspace(0.1, 0.9, SIZE)
while step < last:
    a = 3.7 * a * (1 - a)  # chaotic: one wrong bit changes all that follows
    step += 1
    keeper.save(step, a)
    print("kept", step, repr(float(a.sum())), flush=True)

"""What scientists save with, in the directory given: numpy, h5py, netCDF4 or torch."""
import os
import sys

library, top = sys.argv[1:]
os.chdir(top)


def use_numpy():
    import numpy as np

    a = np.arange(300000, dtype="f8").reshape(100, 3000)
    np.save("a.npy", a)
    np.savez("b.npz", a=a, i=np.arange(10))
    np.savez_compressed("c.npz", a=a)
    np.savetxt("d.txt", a[:10, :10])
    a.tofile("e.raw")
    print(np.load("a.npy").sum(), np.load("b.npz")["i"].sum(), np.load("c.npz")["a"].mean())
    print(np.loadtxt("d.txt").sum(), np.fromfile("e.raw").sum(), np.genfromtxt("d.txt").shape)
    m = np.load("a.npy", mmap_mode="r")
    print(type(m).__name__, m[50].sum())
    c = np.load("a.npy", mmap_mode="c")
    c[0, 0] = 1
    print(c[0, 0], np.load("a.npy")[0, 0])
    with open("f.npy", "wb") as f:
        np.save(f, a)
        np.save(f, a[0])
    with open("f.npy", "rb") as f:
        print(np.load(f).shape, np.load(f).shape)
    try:
        np.load("none.npy")
    except FileNotFoundError as e:
        print(e.errno)


def use_h5py():
    import h5py
    import numpy as np

    a = np.random.default_rng(1).random((500, 400))
    with h5py.File("a.h5", "w") as f:
        f["plain"] = a
        f.create_dataset("chunked", data=a, chunks=(50, 50), compression="gzip", shuffle=True)
        d = f.create_dataset("grows", (0, 400), maxshape=(None, 400), chunks=True)
        for i in range(10):
            d.resize(d.shape[0] + 50, 0)
            d[-50:] = a[i * 50 : (i + 1) * 50]
            f.flush()
        f.create_group("g/h")["text"] = "text"
        f["g"].attrs["when"] = 42
    with h5py.File("a.h5", "r+") as f:
        f["plain"][10] = 0
        del f["chunked"]
        f["g/link"] = h5py.SoftLink("/plain")
    with h5py.File("a.h5") as f:
        print(sorted(f), f["grows"][()].sum() == a.sum(), f["g/link"][10].sum(), f["g/h/text"][()], f["g"].attrs["when"])
    for driver, options in (("core", {"backing_store": True}), ("stdio", {}), ("family", {"memb_size": 2**20}), ("split", {})):
        name = driver + ("-%d" if driver == "family" else "") + ".h5"
        with h5py.File(name, "w", driver=driver, **options) as f:
            f["a"] = a
        with h5py.File(name, "r", driver=driver, **options) as f:
            print(driver, f["a"][()].sum() == a.sum())
    with h5py.File("latest.h5", "w", libver="latest") as f:
        d = f.create_dataset("a", data=a, maxshape=(None, 400))
        f.swmr_mode = True
        d[0] = 1
        d.flush()
        with h5py.File("latest.h5", "r", libver="latest", swmr=True) as r:
            print(r["a"][0].sum())
    with h5py.File("held.h5", "w") as f:
        try:
            h5py.File("held.h5", "r")
        except OSError:
            print("held")
    with h5py.File("outer.h5", "w") as f:
        f["out"] = h5py.ExternalLink("a.h5", "/plain")
        f.create_dataset("raw", (10,), "f8", external=[("raw.bin", 0, 80)])[:] = range(10)
        print(f["out"].shape, os.path.getsize("raw.bin"))
    try:
        h5py.File("none.h5", "r")
    except FileNotFoundError as e:
        print(e.errno)
    print(h5py.is_hdf5("a.h5"))


def use_netcdf():
    import netCDF4
    import numpy as np

    for form in ("NETCDF4", "NETCDF4_CLASSIC", "NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"):
        name = form + ".nc"
        with netCDF4.Dataset(name, "w", format=form) as f:
            f.createDimension("t", None)
            f.createDimension("x", 1000)
            v = f.createVariable("v", "f8", ("t", "x"))
            for t in range(20):
                v[t] = np.arange(1000) * t
                f.sync()
            f.title = "title"
        with netCDF4.Dataset(name, "a") as f:
            f["v"][20] = np.ones(1000)
            f.setncattr("more", "x" * 5000)
        with netCDF4.Dataset(name) as f:
            print(form, f["v"].shape, f["v"][:].sum(), f.title, len(f.more), f.data_model)
    f = netCDF4.Dataset("diskless.nc", "w", diskless=True, persist=True)
    f.createDimension("x", 5)
    f.createVariable("v", "i4", ("x",))[:] = range(5)
    f.close()
    print(netCDF4.Dataset("diskless.nc")["v"][:].sum())
    m = netCDF4.MFDataset(["NETCDF3_CLASSIC.nc", "NETCDF4_CLASSIC.nc"], aggdim="t")
    print(m["v"].shape)
    try:
        netCDF4.Dataset("none.nc")
    except FileNotFoundError as e:
        print(e.errno)


def use_torch():
    import torch

    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.ReLU(), torch.nn.Linear(200, 1))
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.rand(500, 100), torch.rand(500, 1)

    def train(n):
        for _ in range(n):
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
        return loss.item()

    train(5)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, "new.pt.tmp")
    os.replace("new.pt.tmp", "new.pt")
    torch.save(model.state_dict(), "old.pt", _use_new_zipfile_serialization=False)
    with open("file.pt", "wb") as f:
        torch.save(x, f)
    want = train(5)
    state = torch.load("new.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    print(train(5) == want)
    print(len(torch.load("old.pt")), torch.equal(torch.load("file.pt"), x), sorted(torch.load("new.pt", map_location="cpu")))
    with open("file.pt", "rb") as f:
        print(torch.load(f).shape)
    torch.jit.script(model).save("script.pt")
    print(torch.equal(torch.jit.load("script.pt")(x), model(x)))
    torch.rand(1000).numpy().tofile("raw")
    print(torch.from_file("raw", shared=False, size=1000).shape, torch.FloatStorage.from_file("raw", False, 10).size())
    try:
        torch.load("none.pt")
    except FileNotFoundError as e:
        print(e.errno)


{"numpy": use_numpy, "h5py": use_h5py, "netCDF4": use_netcdf, "torch": use_torch}[library]()

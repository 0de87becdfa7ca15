"""zero_sim: DeepSpeed. See common.py. Ranks are in two groups of a model-parallel size, and data-parallel in each.

direct=LIBRARY   the built direct.cc
format=save|fast what writes the optimizer: torch.save, to a path by the first rank of each group and in its old format by others; or libaio with
                 O_DIRECT
block=N          bytes of a request of libaio; half of the buffer has eight of them
local=1          only the first rank of each node makes the directory
kill=data        the last rank, when "latest" has the step; window: all of them then
elastic=1        a load of a model-parallel group's files by each of its ranks
"""
import ctypes
import glob
import mmap
import os
import struct
import threading
import time

import common

MODELS, SAVERS = 2, 4  # model-parallel size, and the number of ranks that save
MODEL, OPTIMIZER = 150_000, 1_234_567


def native(path):
    library, c, n = ctypes.CDLL(path), ctypes.c_char_p, ctypes.c_long
    library.save.argtypes = c, c, n, c, n, c, n
    library.transfer.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_void_p, n, n, n
    return library


def by_path(library, path, key, size):
    """torch.save to a path, which is a C++ stream."""
    body = common.content(key, 0, size).tobytes()
    header, tail = bytes(common.HEADER), bytes(common.TAIL)
    assert library.save(path.encode(), header, len(header), body, len(body), tail, len(tail)) == 0, path


def old_format(path, key, size):
    """torch.save without zip files: the size and the body of each tensor."""
    with open(path, "wb") as f:
        for begin in range(0, size, 400_000):
            n = min(400_000, size - begin)
            f.write(struct.pack("<Q", n))
            f.write(common.content(key, begin, n))


def fast(library, path, key, size, block):
    """DeepSpeed's FastFileWriter: two halves of a buffer by libaio, the rest by an append."""
    half = 8 * block
    buffer = mmap.mmap(-1, 2 * half)  # aligned
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    f, at, side = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644), 0, 0
    while at < size:
        n = min(half, size - at)
        whole = n // 4096 * 4096
        buffer[side:side + n] = common.content(key, at, n)[:]
        error = library.transfer(f, 1, address + side, whole, at, block)
        assert error == 0, f"{path} at {at}: {os.strerror(error)}"
        if n > whole:  # at the end
            os.close(f)
            with open(path, "ab") as tail:
                tail.write(buffer[side + whole:side + n])
            f = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_DIRECT)
        at, side = at + n, half - side
    os.fsync(f)
    os.close(f)


def fast_save(library, path, key, size, block):
    """First over a longer file, which keeps its end and gets the rest behind it, and then over whole pages."""
    whole = size // 4096 * 4096
    common.put(path, "x" * (size + 100_000))
    fast(library, path, key, size, block)
    with open(path, "rb") as f:
        f.seek(whole)
        assert f.read() == b"x" * (size + 100_000 - whole) + common.content(key, whole, size - whole)
    os.truncate(path, whole)
    fast(library, path, key, size, block)
    assert os.stat(path).st_size == size
    f, whole = os.open(path, os.O_RDONLY | os.O_DIRECT), min(size, 8 * block) // 4096 * 4096
    buffer = mmap.mmap(-1, whole)
    assert library.transfer(f, 0, ctypes.addressof(ctypes.c_char.from_buffer(buffer)), whole, 0, block) == 0
    os.close(f)
    assert buffer[:] == common.content(key, 0, whole), "read as it was written"


def names(where, rank):
    """The files of a rank that saves: its optimizer, and its model if it is the first one of a group."""
    data, model = divmod(rank, MODELS)
    return f"{where}/mp_rank_{model:02}_model_states.pt" if data == 0 else None, f"{where}/zero_pp_rank_{data}_mp_rank_{model:02}_optim_states.pt"


def form_of(rank, options):
    return "fast" if options.format == "fast" else "path" if rank // MODELS == 0 else "old"


def save(rank, top, step, options):
    tag = f"global_step{step}"
    where, library, block = f"{top}/{tag}", native(options.direct), int(options.block or 0)
    if rank.rank == 0:
        os.makedirs(top, exist_ok=True)
    rank.barrier()
    if not options.local or rank.local == 0:
        os.makedirs(where, exist_ok=True)
    rank.barrier()
    common.alike(rank, tag)  # by SHA-1 in DeepSpeed
    model, optimizer = names(where, rank.rank)
    late = options.kill and rank.last
    if model:
        by_path(library, model, (step, "model", rank.rank % MODELS), MODEL)
    while late and common.get(f"{top}/latest", "") != tag:
        time.sleep(0.01)
    if late:
        if options.kill == "data":
            with open(optimizer, "wb") as f:
                common.save(f, common.content((step, rank.rank), 0, OPTIMIZER), True)
        threading.Event().wait()  # until its agent kills it
    form = form_of(rank.rank, options)
    if form == "fast":
        fast_save(library, optimizer, (step, rank.rank), OPTIMIZER, block)
    elif form == "old":
        old_format(optimizer, (step, rank.rank), OPTIMIZER)
    else:
        by_path(library, optimizer, (step, rank.rank), OPTIMIZER)
    if rank.rank == 0:
        common.put(f"{top}/latest", tag)
        if options.kill == "window":
            while common.get(f"{top}/latest") != tag:
                time.sleep(0.01)
            common.die()
    rank.barrier()
    assert common.get(f"{top}/latest") == tag
    assert len(common.alike(rank, sorted(os.listdir(where)))) == SAVERS + MODELS


def check(path, key, size, form):
    if form == "old":
        with open(path, "rb") as f:
            for begin in range(0, size, 400_000):
                n, = struct.unpack("<Q", f.read(8))
                assert f.read(n) == common.content(key, begin, n), path
    else:
        common.check(path, 0 if form == "fast" else common.HEADER, key, 0, size)


def load(rank, top, options):
    """The newest step of which every file is there and whole: what "latest" names may not be."""
    sizes = {"fast": OPTIMIZER, "old": OPTIMIZER + 8 * -(-OPTIMIZER // 400_000), "path": common.HEADER + OPTIMIZER + common.TAIL}
    for tag in sorted(glob.glob(f"{top}/global_step*"), reverse=True):
        step = int(tag.rpartition("step")[2])
        all = [names(tag, r)[1] for r in range(SAVERS)]
        whole = [os.path.exists(n) and os.stat(n).st_size == sizes[form_of(r, options)] for r, n in enumerate(all)]
        if not common.alike(rank, len(glob.glob(f"{tag}/mp_rank_*")) == MODELS and False not in whole):
            continue
        model = rank.rank % MODELS
        common.check(sorted(glob.glob(f"{tag}/mp_rank_*"))[model], common.HEADER, (step, "model", model), 0, MODEL)
        for r in range(SAVERS):
            if r == rank.rank or options.elastic and r % MODELS == model:
                check(all[r], (step, r), OPTIMIZER, form_of(r, options))
        return step


if __name__ == "__main__":
    common.main(save, load)

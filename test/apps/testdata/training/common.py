"""What the stand-ins for training frameworks share. Each of them is a program of a rank, which elastic.py starts:

    NAME_sim.py DIRECTORY save FIRST LAST [OPTION=VALUE...]    or    NAME_sim.py DIRECTORY load [OPTION=VALUE...]

A save writes the steps FIRST to LAST. The option kill is where a rank is killed. A load finds the newest complete step by itself. It is
made by any number of ranks, and prints the step. All bytes follow from their place, so that every reader can check every range.
"""
import ctypes
import multiprocessing
import os
import random
import signal
import struct
import sys
import threading
import time

import elastic

BLOCK = 4096


class Options(dict):
    __getattr__ = dict.get


class Rank(elastic.Member):
    """This rank in a group of all ranks. Children that take part in collective calls have a group of their own."""

    def __init__(self, group="ranks"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its agent, or with its rank
        e = os.environ
        super().__init__((e["MASTER_ADDR"], int(e["MASTER_PORT"])), (group, e["TORCHELASTIC_RESTART_COUNT"]), int(e["WORLD_SIZE"]), int(e["RANK"]))
        self.local, self.locals = int(e["LOCAL_RANK"]), int(e["LOCAL_WORLD_SIZE"])
        self.node, self.nodes, self.turn = int(e["GROUP_RANK"]), int(e["GROUP_WORLD_SIZE"]), int(e["TORCHELASTIC_RESTART_COUNT"])

    @property
    def last(self):
        return self.rank == self.size - 1


def content(key, start, length):
    """Bytes of a tensor: random ones, with a number in each block, which changes with the place."""
    first, end = start // BLOCK, -(-(start + length) // BLOCK)
    blocks = bytearray(random.Random(repr(key)).randbytes(BLOCK) * (end - first))
    for i in range(first, end):
        struct.pack_into("<Q", blocks, (i - first) * BLOCK, i)
    return memoryview(blocks)[start - first * BLOCK:][:length]


HEADER, TAIL = 320, 427


def save(f, body, killed=False):
    """torch.save to an open file: a header, whose length puts the body at a multiple of 64 bytes, the body, and the end of a zip file. It returns
    the offset of the body."""
    at = -(-(f.tell() + HEADER) // 64) * 64
    f.write(bytes(at - f.tell()))
    f.write(body)
    if killed:
        f.flush()
        die()
    f.write(bytes(TAIL))
    return at


def check(path, offset, key, start, length):
    """Compares a range of a file with a range of a tensor, in the pieces in which loaders read."""
    with open(path, "rb", buffering=0) as f:
        piece = memoryview(bytearray(min(length, 8 << 20)))
        f.seek(offset)
        while length > 0:
            n = f.readinto(piece[:length])
            assert n, f"{path} ends at {f.tell()}, {length} bytes early"
            assert piece[:n] == content(key, start, n), f"{path} at {f.tell() - n}"
            start, length = start + n, length - n


def put(path, text, sync=False):
    with open(path, "w") as f:
        f.write(text)
        f.flush()
        if sync:
            os.fsync(f.fileno())


def get(path, default=None):
    try:
        with open(path) as f:
            return f.read()
    except FileNotFoundError:
        if default is None:
            raise
        return default


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def threads(work, *lists):
    """Calls work in a thread for each list of arguments, and returns when all have returned."""
    failures = []

    def guarded(*args):
        try:
            work(*args)
        except BaseException as e:
            failures.append(e)
    all = [threading.Thread(target=guarded, args=args) for args in lists]
    for t in all:
        t.start()
    for t in all:
        t.join()
    if failures:
        raise failures[0]


def by(writer, work, *args, meanwhile=lambda: None):
    """Calls work in a thread, or in a forked or spawned child, and something else meanwhile."""
    if writer == "thread":
        return threads(lambda f, *a: f(*a), (work, *args), (meanwhile,))
    child = multiprocessing.get_context(writer).Process(target=work, args=args)
    child.start()
    meanwhile()
    child.join()
    assert child.exitcode == 0, f"the child ended with {child.exitcode}"


def alike(rank, value):
    """A value that all ranks must have."""
    values = rank.allgather(value)
    assert all(v == values[0] for v in values), values
    return value


def until(true):
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def main(save, load):
    top, what, *more = sys.argv[1:]
    options = Options(a.split("=") for a in more if "=" in a)
    rank = Rank()
    step = 0
    if what == "save":
        first, last = (int(a) for a in more[:2])
        if rank.turn:  # the agents have restarted the ranks
            options.pop("kill", None)
            first = load(rank, top, options) + 1
        for step in range(first, last + 1):
            save(rank, top, step, options)
    else:
        step = alike(rank, load(rank, top, options))
    rank.barrier()
    if rank.rank == 0:
        print(what, step, flush=True)
    rank.leave()

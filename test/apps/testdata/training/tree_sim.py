"""tree_sim: DLRover, Hugging Face and Lightning. See common.py. Ranks fill memory that they share with the agent of their node, and may end
then. The agents write the files, and know of each other only what the file system says.

kill=data     a rank that has filled its memory, and goes on no further
kill=agent    the agent of node 0, when the step has its name, and the tracker has not
"""
import mmap
import os
import random
import shutil
import struct
import tempfile

import common
import elastic

PART, MODEL = 700_000, 900_000
HEADER = struct.Struct("<QQ")  # the step of which the memory is full, and the one that has been written


class Memory:
    """The memory of a rank."""

    def __init__(self, fd):
        self.map = mmap.mmap(fd, elastic.MEMORY)

    def steps(self):
        return HEADER.unpack_from(self.map)

    def set(self, filled=None, written=None):
        if filled is not None:
            struct.pack_into("<Q", self.map, 0, filled)
        if written is not None:
            struct.pack_into("<Q", self.map, 8, written)

    @property
    def body(self):
        return memoryview(self.map)[4096:4096 + PART]


def tracker(top):
    return int(common.get(f"{top}/tracker.txt", "") or 0)


# ---- the agent ----

def agent(agents, node, fds, arguments):
    """Writes each step that the ranks of this node have filled in."""
    top, what, *more = arguments
    if what != "save":
        return
    options = common.Options(a.split("=") for a in more if "=" in a)
    memories = [Memory(fd) for fd in fds]
    for step in range(int(more[0]), int(more[1]) + 1):
        common.until(lambda: all(m.steps()[0] == step for m in memories))
        write(top, step, agents.size, node, memories, options)
    common.until(lambda: options.kill or tracker(top) == step)


def write(top, step, nodes, node, memories, options):
    stage, done = f"{top}/stage/{step}", f"{top}/stage/{step}.done"
    if node == 0:
        for path in done, stage:  # left by a save that was killed
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path)
    else:
        common.until(lambda: os.path.exists(done) and os.path.exists(stage))

    def shard(local):
        rank = node * len(memories) + local
        with open(f"{stage}/shard_{rank}", "wb", buffering=0) as f:
            assert f.write(memories[local].body) == PART  # one call
            os.fsync(f.fileno())
        common.put(f"{done}/{rank}", "", sync=True)
    common.threads(shard, *((i,) for i in range(len(memories))))
    if node == 0:
        common.until(lambda: len(os.listdir(done)) == nodes * len(memories))
        for rank in range(nodes * len(memories)):
            assert os.stat(f"{stage}/shard_{rank}").st_size == PART, "its size has no bytes, or the bytes no size"
        shutil.rmtree(f"{top}/checkpoint-{step}", ignore_errors=True)
        os.rename(stage, f"{top}/checkpoint-{step}")
        shutil.rmtree(done)
        if options.kill == "agent":
            common.die()
        common.put(f"{top}/tracker.txt", str(step), sync=True)
    for m in memories:
        m.set(written=step)


# ---- a rank ----

def save(rank, top, step, options):
    os.makedirs(top, exist_ok=True)
    memory = Memory(int(os.environ["MEMORY"]))
    memory.body[:] = common.content((step, rank.rank), 0, PART)
    memory.set(filled=step)
    if options.kill == "data" and rank.last:
        common.until(lambda: tracker(top) == step)  # its agent writes nevertheless
        common.die()
    common.until(lambda: tracker(top) == step)
    where = f"{top}/checkpoint-{step}"
    os.makedirs(where, exist_ok=True)
    common.put(f"{where}/rng_state_{rank.rank}", str(rank.rank))
    model(rank, where, step)
    if rank.rank == 0:
        with tempfile.NamedTemporaryFile("w", dir="/dev/shm", delete=False) as f:  # of another file system
            f.write("from elsewhere")
        os.chmod(f.name, 0o644)
        shutil.move(f.name, f"{where}/config.json")
        os.symlink(f"checkpoint-{step}", f"{top}/last.tmp")
        os.rename(f"{top}/last.tmp", f"{top}/last.ckpt")
        for old in sorted((n for n in os.listdir(top) if n.startswith("checkpoint-")), key=lambda n: int(n[11:]))[:-1]:
            shutil.rmtree(f"{top}/{old}")
    else:
        for _ in range(20):
            listed(f"{top}/checkpoint-{step - 1}", step - 1)
    rank.barrier()
    assert common.get(f"{top}/last.ckpt/config.json") == "from elsewhere"
    assert len(common.alike(rank, sorted(os.listdir(where)))) == 2 * rank.size + 2
    assert common.alike(rank, sorted(n for n in os.listdir(top) if n.startswith("checkpoint-"))) == [f"checkpoint-{step}"]


def listed(path, step):
    """Lists a step that rank 0 removes. A file has its bytes, or no name."""
    try:
        for name in os.listdir(path):
            if name.startswith("shard_"):
                with open(f"{path}/{name}", "rb") as f:
                    assert f.read(5000) == common.content((step, int(name[6:])), 0, 5000), name
    except (FileNotFoundError, NotADirectoryError):
        pass


def model(rank, where, step):
    """One file by rank 0, mapped by all, and replaced while it is mapped."""
    path = f"{where}/model.safetensors"

    def replace(version):
        with tempfile.NamedTemporaryFile(dir=where, delete=False) as f:
            f.truncate(MODEL)
            for at in range(0, MODEL, 1 << 18):
                f.write(common.content((step, version), at, min(1 << 18, MODEL - at)))
        os.chmod(f.name, 0o644)
        os.rename(f.name, path)
    if rank.rank == 0:
        replace("old")
    rank.barrier()
    with open(path, "rb") as f:
        mapped = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE)
    pages = random.Random(rank.rank)
    for _ in range(20):
        at = 4096 * pages.randrange(MODEL // 4096)
        assert mapped[at:at + 4096] == common.content((step, "old"), at, 4096)
    rank.barrier()
    if rank.rank == 0:
        replace("new")
    rank.barrier()
    assert mapped[:] == common.content((step, "old"), 0, MODEL)
    common.check(path, 0, (step, "new"), 0, MODEL)


def load(rank, top, options):
    step = int(common.alike(rank, tracker(top)))
    if options.named:  # the tracker may be older than the newest step
        step = max(int(n[11:]) for n in os.listdir(top) if n.startswith("checkpoint-"))
    ranks = len([n for n in os.listdir(f"{top}/checkpoint-{step}") if n.startswith("shard_")])
    assert ranks == 4, os.listdir(f"{top}/checkpoint-{step}")
    for r in range(ranks):
        common.check(f"{top}/checkpoint-{step}/shard_{r}", 0, (step, r), 0, PART)
    return step


if __name__ == "__main__":
    common.main(save, load)

"""local_sim: NVIDIA's resiliency extension. See common.py. Each rank has a directory of its own, as on storage of its node.

clique=F     number of ranks that keep each part: the owner, and ranks on other nodes, which get it by the network
writer=thread|fork|spawn
kill=data    the last rank, before its part has its name; parent: when it has started a child that writes
lose=R       a load without the directories of the first R ranks of a clique, one after the other
left=S...    steps that may be the newest ones then, such as 3,4
"""
import glob
import os
import shutil
import threading

import common

SAVERS, SIZE = 4, 300_000


def clique(rank, ranks, count):
    """The ranks that keep the same parts."""
    return [(rank % (ranks // count)) + i * (ranks // count) for i in range(count)]


def write(own, step, parts, killed):
    for owner, body in parts.items():
        name = f"{own}/iter_{step:07}_{owner}_local"
        with open(f"{name}.dirty.pt", "xb") as f:
            common.save(f, body, killed)
        try:
            open(f"{name}.dirty.pt", "xb")
            raise AssertionError("made twice")
        except FileExistsError:
            os.rename(f"{name}.dirty.pt", f"{name}.pt")


def save(rank, top, step, options):
    own, count = f"{top}/session/{rank.rank}", int(options.clique)
    os.makedirs(own, exist_ok=True)
    bodies = rank.allgather(common.content((step, rank.rank), 0, SIZE).tobytes() if count > 1 else None)
    bodies[rank.rank] = common.content((step, rank.rank), 0, SIZE).tobytes()
    parts = {owner: bodies[owner] for owner in clique(rank.rank, rank.size, count)}
    killed = options.kill if rank.last else None
    common.by(options.writer, write, own, step, parts, killed == "data", meanwhile=common.die if killed == "parent" else lambda: None)
    rank.barrier()
    have = rank.allgather(sorted(os.listdir(own)))
    kept = [n for one in have for n in one if n.startswith(f"iter_{step:07}_")]
    assert len(kept) == count * rank.size and {int(n.split("_")[2]) for n in kept} == set(range(rank.size)), have
    older = threading.Thread(target=lambda: [os.unlink(p) for p in glob.glob(f"{own}/*") if f"iter_{step:07}" not in p])  # dirty ones too
    older.start()
    older.join()
    rank.barrier()
    assert len(common.alike(rank, sorted(glob.glob(f"{top}/session/*/*")))) == count * rank.size


def newest(files):
    """The newest step of which every part is there, -1 if none is, and its files by owner."""
    owners = {}
    for path in files:
        _, step, owner, _ = os.path.basename(path).split("_")
        owners.setdefault(int(step), {})[int(owner)] = path
    step = max((s for s, o in owners.items() if len(o) == SAVERS), default=-1)
    return step, owners.get(step, {})


def parts_of(rank, top):
    """What all ranks have: each lists the directories that it would have on its node."""
    mine = [p for r in range(rank.rank, SAVERS, rank.size) for p in sorted(glob.glob(f"{top}/session/{r}/*_local.pt"))]
    return newest(p for one in rank.allgather(mine) for p in one)


def load_newest(rank, top):
    step, parts = parts_of(rank, top)
    for path in glob.glob(f"{top}/session/{rank.rank}/*.dirty.pt"):  # its own, of a save that was killed
        os.unlink(path)
    sent = {}
    for owner, path in parts.items():
        if int(path.split("/")[-2]) % rank.size == rank.rank:
            common.check(path, common.HEADER, (step, owner), 0, SIZE)
            with open(path, "rb") as f:
                f.seek(common.HEADER)
                sent[owner] = f.read(SIZE)
    for one in rank.allgather(sent):  # parts that a rank does not have are sent by another one
        if rank.rank in one:
            assert one[rank.rank] == common.content((step, rank.rank), 0, SIZE)
    return step


def load(rank, top, options):
    step = load_newest(rank, top)
    for i in range(int(options.lose or 0)):
        lost = clique(1, SAVERS, int(options.clique))[i]
        if rank.rank == 0:
            shutil.rmtree(f"{top}/session/{lost}")
        rank.barrier()
        left = load_newest(rank, top)
        # Of a save that was killed there may be one copy of a part only.
        assert left in ([-1] if i == int(options.clique) - 1 else [int(s) for s in options.left.split(",")]), left
    return step


if __name__ == "__main__":
    common.main(save, load)

"""dcp_sim: torch.distributed.checkpoint, as PyTorch, Megatron and torchtitan use it. See common.py.

writer=thread|fork|spawn   what writes the files and the metadata while the rank goes on
threads=T                  number of files of each rank
late=1                     the last bytes of a file are written after its fsync, as by Megatron
large=1                    one tensor has 2.3 GiB
kill=data|metadata|rename|tracker
"""
import glob
import json
import os
import pickle
import shutil

import common

TENSORS, REPLICATED = 40, 12
LARGE = 2469606195  # 2.3 GiB


def size_of(tensor, large):
    if large and tensor == TENSORS - 1:  # a replicated one: one rank writes all of it
        return LARGE
    return 700 + 2903 * tensor if tensor >= TENSORS - REPLICATED else 5000 + 7919 * tensor


def part(size, ranks, rank):
    """The range of a tensor that a rank has."""
    begin = size * rank // ranks
    return begin, size * (rank + 1) // ranks - begin


def wanted(ranks, rank, large):
    """What a rank has in memory: parts of tensors, and whole replicated ones."""
    for tensor in range(TENSORS):
        size = size_of(tensor, large)
        yield (tensor, *(part(size, ranks, rank) if tensor < TENSORS - REPLICATED else (0, size)))


def plan(plans):
    """Gives each replicated tensor to the rank with the fewest bytes."""
    out = [[item for item in p if item[0] < TENSORS - REPLICATED] for p in plans]
    for item in sorted((i for i in plans[0] if i[0] >= TENSORS - REPLICATED), key=lambda i: -i[2]):
        min(out, key=lambda p: sum(i[2] for i in p)).append(item)
    return out


def write_file(where, step, name, items, late, killed, done):
    with open(f"{where}/{name}", "wb") as f:
        for tensor, start, length in items:
            offset = common.save(f, common.content((step, tensor), start, length), killed and tensor == items[-1][0])
            done.append((name, offset, tensor, start, length))
        blob = bytes(3000)
        if not late:
            f.write(blob)
        f.flush()
        os.fsync(f.fileno())
        if late:
            f.write(blob)


def write(rank_is, top, step, items, options):
    """Writes the files and the metadata: in a group of its own, since it may be in a child."""
    rank = common.Rank(f"writers of {step}")
    where, count, done = f"{top}/step-{step}", int(options.threads), []
    killed = options.kill == "data" and rank.last
    common.threads(write_file, *((where, step, f"__{rank_is}_{t}.distcp", items[t::count], options.late, killed and t == count - 1, done)
                                 for t in range(count)))
    all = rank.gather(done)
    if rank.rank == 0:
        with open(f"{where}/.metadata.tmp", "wb") as f:
            pickle.dump(sorted(i for one in all for i in one), f)
            f.flush()
            os.fsync(f.fileno())
        if options.kill == "metadata":
            common.die()
        if os.path.exists(f"{where}/.metadata"):
            os.unlink(f"{where}/.metadata")
        os.rename(f"{where}/.metadata.tmp", f"{where}/.metadata")
        if options.kill == "rename":
            common.die()
        common.put(f"{where}/metadata.json", json.dumps({"step": step}))
    rank.barrier()
    rank.leave()


def save(rank, top, step, options):
    where = f"{top}/step-{step}"
    os.makedirs(where, exist_ok=True)
    was = common.alike(rank, os.path.exists(f"{where}/.metadata"))
    assert not was or options.again
    plans = rank.gather(list(wanted(rank.size, rank.rank, options.large)))
    items = rank.scatter(plan(plans) if rank.rank == 0 else None)

    def train():
        if rank.rank == 0:  # while others write
            shutil.rmtree(f"{top}/step-{step - 2}", ignore_errors=True)
            return
        path = f"{top}/step-{step - 2}/__0_0.distcp"
        while step > 2:
            try:
                first(path, step - 2)
            except FileNotFoundError:
                return
    common.by(options.writer, write, rank.rank, top, step, items, options, meanwhile=train)
    rank.barrier()
    if rank.rank == 0:
        if options.kill == "tracker":
            common.die()
        common.put(f"{top}/latest_checkpointed_iteration.txt", str(step))
    rank.barrier()
    assert common.get(f"{top}/latest_checkpointed_iteration.txt") == str(step)
    names = common.alike(rank, sorted(os.listdir(where)))
    assert len(names) == int(options.threads) * rank.size + 2, names
    common.alike(rank, [os.stat(f"{where}/{n}").st_size for n in names])
    assert not os.path.exists(f"{top}/step-{step - 2}")


def first(path, step):
    """Checks the first bytes of rank 0's first file, which belong to the first tensor."""
    with open(path, "rb") as f:
        f.seek(common.HEADER)
        assert f.read(1000) == common.content((step, 0), 0, 1000), path


def load(rank, top, options):
    complete = common.alike(rank, sorted(int(p.split("-")[-1].split("/")[0]) for p in glob.glob(f"{top}/step-*/.metadata")))
    step = complete[-1]
    where = f"{top}/step-{step}"
    with open(f"{where}/.metadata", "rb") as f:
        items = pickle.load(f)
    reads, bytes = [], 0
    for tensor, start, length in wanted(rank.size, rank.rank, options.large):
        for name, offset, of, begin, n in items:
            low, high = max(start, begin), min(start + length, begin + n)
            if of == tensor and low < high:
                reads.append((f"{where}/{name}", offset + low - begin, (step, tensor), low, high - low))
                bytes += high - low
    assert bytes == sum(n for _, _, n in wanted(rank.size, rank.rank, options.large)), "ranges are missing"
    reads.sort(key=lambda r: (r[0], -r[4]))

    def reader(mine):
        for r in mine:
            common.check(*r)
    common.threads(reader, *((reads[t::8],) for t in range(8)))
    return step


if __name__ == "__main__":
    common.main(save, load)

"""What training frameworks do to files when they save and load checkpoints, without the frameworks.

    training.py KIND DIRECTORY save FIRST LAST WRITER [KILL]   or   training.py KIND DIRECTORY load [lose]

dcp:   torch.distributed.checkpoint, Megatron, torchtitan     zero:  DeepSpeed
local: NVIDIA's resiliency extension                           stage: DLRover, Hugging Face, Lightning

WRITER is what writes a rank's files while the rank goes on: thread, fork or spawn. KILL is where a rank is killed: the last one in the middle of
its data, or while its child writes it (parent); rank 0 before one of its own steps. With lose the files of ranks are removed.
A step is loaded by any number of ranks. All bytes follow from their names, so that every reader can check them.
"""
import glob
import json
import mmap
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

SAVERS = 4  # ranks that save; any number loads


def data(*key, size=100_000):
    return random.Random(repr(key)).randbytes(size)


def world():
    from mpi4py import MPI  # not in what is spawned
    return MPI.COMM_WORLD


def written(path, body, killed=False, mode="wb", sync=False):
    """torch.save: a header, the tensor, a tail."""
    with open(path, mode) as f:
        f.write(bytes(320))
        f.write(body)
        if killed:
            f.flush()
            die()
        f.write(bytes(427))
        if sync:
            f.flush()
            os.fsync(f.fileno())
            f.write(b"behind the fsync")  # Megatron's buffer


def read(path, size):
    with open(path, "rb") as f:
        f.seek(320)
        return f.read(size)


def put(path, text):
    with open(path, "w") as f:
        f.write(text)


def get(path):
    with open(path) as f:
        return f.read()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def by(writer, work, *lists, meanwhile=lambda: None):
    """Runs work with each list of arguments in a thread or a child, all at once, and to their ends."""
    new = threading.Thread if writer == "thread" else multiprocessing.get_context(writer).Process
    all = [new(target=work, args=args) for args in lists]
    for one in all:
        one.start()
    meanwhile()
    for one in all:
        one.join()
        assert writer == "thread" or one.exitcode == 0, f"the child ended with {one.exitcode}"


def all_alike(comm, value):
    values = comm.allgather(value)
    assert all(v == values[0] for v in values), values
    return value


# ---- dcp ----

def dcp_write(where, step, rank, thread, killed):
    path = f"{where}/__{rank}_{thread}.distcp"
    written(path, data(step, rank, thread), killed and thread == 1, sync=True)


def dcp_save(comm, top, step, writer, kill):
    where = f"{top}/step-{step}"
    os.makedirs(where, exist_ok=True)
    assert not all_alike(comm, os.path.exists(f"{where}/.metadata"))
    last = comm.rank == comm.size - 1

    def train():
        if kill == "parent" and last:
            die()
        if comm.rank == 0:
            shutil.rmtree(f"{top}/step-{step - 2}", ignore_errors=True)  # while others write
        os.listdir(top)
    by(writer, dcp_write, *((where, step, comm.rank, thread, kill == "data" and last) for thread in range(2)), meanwhile=train)
    items = comm.gather([(f"__{comm.rank}_{t}.distcp", comm.rank, t) for t in range(2)])
    if comm.rank == 0:
        with open(f"{where}/.metadata.tmp", "wb") as f:
            pickle.dump([i for one in items for i in one], f)
            f.flush()
            os.fsync(f.fileno())
        if kill == "metadata":
            die()
        os.rename(f"{where}/.metadata.tmp", f"{where}/.metadata")
        put(f"{where}/metadata.json", json.dumps({"step": step}))
    comm.barrier()
    if comm.rank == 0:
        if kill == "tracker":
            die()
        put(f"{top}/latest_checkpointed_iteration.txt", str(step))
    comm.barrier()
    assert get(f"{top}/latest_checkpointed_iteration.txt") == str(step)
    names = all_alike(comm, sorted(os.listdir(where)))
    assert len(names) == 2 * comm.size + 2, names
    all_alike(comm, [os.stat(f"{where}/{n}").st_size for n in names])
    assert not os.path.exists(f"{top}/step-{step - 2}")


def dcp_load(comm, top):
    complete = all_alike(comm, sorted(int(p.split("-")[-1].split("/")[0]) for p in glob.glob(f"{top}/step-*/.metadata")))
    step = complete[-1]
    with open(f"{top}/step-{step}/.metadata", "rb") as f:
        items = pickle.load(f)
    wrong = []

    def check(mine):
        for name, rank, thread in mine:
            want = data(step, rank, thread)
            if read(f"{top}/step-{step}/{name}", len(want)) != want:
                wrong.append(name)
    threads = [threading.Thread(target=check, args=(items[t::3],)) for t in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(items) == 2 * SAVERS and not wrong, wrong
    return step


# ---- zero ----

def zero_fast(path, body):
    """An older, longer file is written over by O_DIRECT, its tail by an append."""
    put(path, "x" * 300_000)
    f = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o644)
    whole = len(body) // 4096 * 4096
    page = mmap.mmap(-1, whole)
    page.write(body[:whole])
    assert os.pwritev(f, [page], 0) == whole
    os.close(f)
    with open(path, "ab") as f:
        f.write(body[whole:])
    f = os.open(path, os.O_RDWR | os.O_APPEND | os.O_DIRECT)
    os.fsync(f)
    os.close(f)
    assert os.stat(path).st_size == len(body)


def zero_write(where, step, rank, killed):
    written(f"{where}/zero_pp_rank_{rank}_optim_states.pt", data(step, rank), killed)
    zero_fast(f"{where}/fast_{rank}.pt", data(step, rank, "fast"))


def zero_save(comm, top, step, writer, kill):
    where = f"{top}/global_step{step}"
    if comm.rank == 0:
        os.makedirs(top, exist_ok=True)
    comm.barrier()
    os.makedirs(where, exist_ok=True)
    if comm.rank == 0:
        written(f"{where}/mp_rank_00_model_states.pt", data(step, "model"))
        put(f"{top}/latest", f"global_step{step}")
    last = comm.rank == comm.size - 1
    while kill and last and get(f"{top}/latest") != f"global_step{step}":
        time.sleep(0.01)  # it is slow
    by(writer, zero_write, (where, step, comm.rank, kill == "data" and last))
    comm.barrier()
    assert get(f"{top}/latest") == f"global_step{step}"
    assert len(all_alike(comm, sorted(os.listdir(where)))) == 2 * comm.size + 1


def zero_load(comm, top):
    for tag in sorted(glob.glob(f"{top}/global_step*"), reverse=True):
        step = int(tag.rpartition("step")[2])
        names = [f"{tag}/zero_pp_rank_{r}_optim_states.pt" for r in range(SAVERS)]
        size = 320 + 100_000 + 427
        if not all_alike(comm, all(os.path.exists(n) and os.stat(n).st_size == size for n in names)):
            continue  # the one in which it was killed
        for r, name in enumerate(names):
            assert read(name, 100_000) == data(step, r), name
            with open(f"{tag}/fast_{r}.pt", "rb") as f:
                assert f.read() == data(step, r, "fast"), name
        assert read(glob.glob(f"{tag}/mp_rank_*")[0], 100_000) == data(step, "model")
        return step


# ---- local ----

def local_write(own, step, owner, killed):
    name = f"{own}/iter_{step:07}_{owner}_local"
    written(f"{name}.dirty.pt", data(step, owner), killed, mode="xb")
    try:
        open(f"{name}.dirty.pt", "xb")
        raise AssertionError("made twice")
    except FileExistsError:
        os.rename(f"{name}.dirty.pt", f"{name}.pt")


def local_save(comm, top, step, writer, kill):
    own = f"{top}/session/{comm.rank}"
    os.makedirs(own, exist_ok=True)
    by(writer, local_write, *((own, step, owner, kill == "data" and comm.rank == comm.size - 1) for owner in (comm.rank, comm.rank ^ 1)))
    comm.barrier()
    have = comm.allgather(sorted(os.listdir(own)))
    assert sum(f"iter_{step:07}_" in n for one in have for n in one) == 2 * comm.size, have
    older = threading.Thread(target=lambda: [os.unlink(p) for p in glob.glob(f"{own}/*") if f"iter_{step:07}" not in p])
    older.start()
    older.join()
    comm.barrier()
    assert len(all_alike(comm, sorted(glob.glob(f"{top}/session/*/*")))) == 2 * comm.size


def local_lose(comm, top):
    """A node is lost, and then its partner."""
    step = local_load(comm, top)
    for rank, least in (1, 3), (0, -1):
        # Of a save that was killed there may be one copy of a part only.
        left = newest(p for p in local_files(comm, top) if f"/session/{rank}/" not in p)[0]
        assert left >= least and (rank == 1 or left == -1), left
        comm.barrier()
        if comm.rank == 0:
            shutil.rmtree(f"{top}/session/{rank}")
        comm.barrier()
        assert local_load(comm, top) == left
    return step


def local_files(comm, top):
    return all_alike(comm, sorted(glob.glob(f"{top}/session/*/*_local.pt")))


def newest(files):
    """The newest step of which every part is there, -1 if none is, and its files by owner."""
    owners = {}
    for path in files:
        _, step, owner, _ = os.path.basename(path).split("_")
        owners.setdefault(int(step), {})[int(owner)] = path
    step = max((s for s, o in owners.items() if len(o) == SAVERS), default=-1)
    return step, owners.get(step, {})


def local_load(comm, top):
    step, parts = newest(local_files(comm, top))
    for owner, path in parts.items():
        assert read(path, 100_000) == data(step, owner), path
    return step


# ---- stage ----

def until(true):
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def stage_write(top, step, rank, killed):
    written(f"{top}/stage/{step}/shard_{rank}", data(step, rank), killed, sync=True)
    put(f"{top}/stage/{step}.done/{rank}", "")


def tracker(top):
    try:
        return get(f"{top}/tracker.txt")
    except FileNotFoundError:
        return ""


def stage_commit(top, step, ranks, kill):
    until(lambda: len(os.listdir(f"{top}/stage/{step}.done")) == ranks)
    shutil.rmtree(f"{top}/checkpoint-{step}", ignore_errors=True)
    os.rename(f"{top}/stage/{step}", f"{top}/checkpoint-{step}")
    shutil.rmtree(f"{top}/stage/{step}.done")
    if kill == "tracker":
        die()
    put(f"{top}/tracker.tmp", str(step))
    os.rename(f"{top}/tracker.tmp", f"{top}/tracker.txt")


def stage_model(comm, where, step):
    """One file by rank 0, mapped by all, and replaced while it is mapped."""
    def replace(version):
        with open(f"{where}/model.tmp", "wb") as f:
            f.truncate(300_000)
            f.write(data(step, version, size=300_000))
        os.rename(f"{where}/model.tmp", f"{where}/model.safetensors")
    if comm.rank == 0:
        replace("old")
    comm.barrier()
    with open(f"{where}/model.safetensors", "rb") as f:
        mapped = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE)
    comm.barrier()
    if comm.rank == 0:
        replace("new")
    comm.barrier()
    assert mapped[:] == data(step, "old", size=300_000)
    with open(f"{where}/model.safetensors", "rb") as f:
        assert f.read() == data(step, "new", size=300_000)


def stage_save(comm, top, step, writer, kill):
    if comm.rank == 0:
        for left in f"{step}", f"{step}.done":  # by a rank that was killed
            shutil.rmtree(f"{top}/stage/{left}", ignore_errors=True)
        os.makedirs(f"{top}/stage/{step}")
        os.makedirs(f"{top}/stage/{step}.done")
    until(lambda: os.path.exists(f"{top}/stage/{step}.done"))
    by(writer, stage_write, (top, step, comm.rank, kill == "data" and comm.rank == comm.size - 1))
    if comm.rank == 0:
        stage_commit(top, step, comm.size, kill)
    until(lambda: tracker(top) == str(step))
    where = f"{top}/checkpoint-{step}"
    os.makedirs(where, exist_ok=True)
    put(f"{where}/rng_state_{comm.rank}", str(comm.rank))
    stage_model(comm, where, step)
    if comm.rank == 0:
        with tempfile.NamedTemporaryFile("w", delete=False) as f:
            f.write("from elsewhere")
        os.chmod(f.name, 0o644)
        shutil.move(f.name, f"{where}/config.json")
        os.symlink(f"checkpoint-{step}", f"{top}/last.tmp")
        os.rename(f"{top}/last.tmp", f"{top}/last.ckpt")
        shutil.rmtree(f"{top}/checkpoint-{step - 1}", ignore_errors=True)
    else:
        os.listdir(top)
    comm.barrier()
    assert get(f"{top}/last.ckpt/config.json") == "from elsewhere"
    assert len(all_alike(comm, sorted(os.listdir(where)))) == 2 * comm.size + 2
    assert not os.path.exists(f"{top}/checkpoint-{step - 1}")


def stage_load(comm, top):
    step = int(all_alike(comm, tracker(top)))
    for r in range(SAVERS):
        assert read(f"{top}/checkpoint-{step}/shard_{r}", 100_000) == data(step, r)
        assert get(f"{top}/checkpoint-{step}/rng_state_{r}") == str(r)
    return step


def main():
    kind, top, what = sys.argv[1:4]
    comm = world()
    if what == "save":
        first, last, writer, kill = int(sys.argv[4]), int(sys.argv[5]), sys.argv[6], "".join(sys.argv[7:])
        for step in range(first, last + 1):
            globals()[f"{kind}_save"](comm, top, step, writer, kill)
    else:
        step = all_alike(comm, globals()[f"{kind}_{sys.argv[-1]}"](comm, top))
    comm.barrier()
    if comm.rank == 0:
        print(what, step, flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        import traceback
        traceback.print_exc()
        world().Abort(1)

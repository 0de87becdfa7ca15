"""An agent as torchrun starts one on each node: it starts the ranks of its node, outlives them, and restarts all when one has failed.

    elastic.py [nodes=N node=I meet=FILE address=A] ranks=R [restarts=K] PROGRAM ARGUMENT...

R is the number of ranks on this node, which is equal on all nodes. The agent of node 0 serves the collective calls of ranks and agents (see
Server), at a port that it writes to FILE. If PROGRAM has a function agent(members, node, memory), the agent calls it meanwhile. Ranks
and their agent share memory, a file for each rank.
"""
import importlib.util
import os
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Client, Listener

KEY = b"training"
MEMORY = 1 << 20  # bytes of each rank's memory


class Server:
    """Collective calls of several groups. A group is named by a key, and has a fixed size. It breaks when one of its members ends."""

    def __init__(self, address):
        self.listener = Listener((address, 0), backlog=64, authkey=KEY)
        self.change = threading.Condition()
        self.rounds = {}  # (group, number of the call): values by member
        self.broken, self.left = set(), []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection = self.listener.accept()
            except (EOFError, OSError):
                continue  # a member was killed while it connected
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        group = None
        try:
            group, size, member = connection.recv()
            for count in range(1 << 62):
                value = connection.recv()
                if value is Member:  # it leaves in order
                    with self.change:
                        self.left.append(group)
                        self.change.notify_all()
                    return
                connection.send(self.gather((group, count), size, member, value))
        except (EOFError, OSError):
            with self.change:
                self.broken.add(group)
                self.change.notify_all()

    def await_all(self, group, size):
        """Waits until all members of a group have their last answers, and leave; or one has ended."""
        with self.change:
            self.change.wait_for(lambda: self.left.count(group) == size or group in self.broken)

    def gather(self, call, size, member, value):
        with self.change:
            values = self.rounds.setdefault(call, {})
            values[member] = value
            self.change.notify_all()
            self.change.wait_for(lambda: len(values) == size or call[0] in self.broken)
            return [values[m] for m in range(size)] if len(values) == size else None


class Member:
    """A member of a group."""

    def __init__(self, address, group, size, rank):
        self.rank, self.size = rank, size
        self.connection = Client(address, authkey=KEY)
        self.connection.send((group, size, rank))

    def allgather(self, value):
        self.connection.send(value)
        values = self.connection.recv()
        if values is None:
            raise ConnectionError("another member has ended")
        return values

    def gather(self, value):
        values = self.allgather(value)
        return values if self.rank == 0 else None

    def scatter(self, values):
        return self.allgather(values)[0][self.rank]

    def barrier(self):
        self.allgather(None)

    def leave(self):
        self.connection.send(Member)


def start(address, nodes, node, ranks, turn, memory, line):
    children = []
    for local in range(ranks):
        env = dict(os.environ, RANK=str(node * ranks + local), LOCAL_RANK=str(local), WORLD_SIZE=str(nodes * ranks), LOCAL_WORLD_SIZE=str(ranks),
                   GROUP_RANK=str(node), GROUP_WORLD_SIZE=str(nodes), MASTER_ADDR=address[0], MASTER_PORT=str(address[1]),
                   TORCHELASTIC_RUN_ID="training", TORCHELASTIC_RESTART_COUNT=str(turn), MEMORY=str(memory[local]))
        children.append(subprocess.Popen([sys.executable, *line], env=env, pass_fds=[memory[local]]))
    return children


def meet(options, nodes, node):
    """Returns the address of the server, which node 0 starts, and the server there."""
    if node == 0:
        server = Server(options.get("address", "127.0.0.1"))
        address = server.listener.address
        if nodes > 1:
            with open(options["meet"] + ".tmp", "w") as f:
                f.write(f"{address[0]} {address[1]}")
            os.rename(options["meet"] + ".tmp", options["meet"])
        return address, server
    while not os.path.exists(options["meet"]):
        time.sleep(0.02)
    with open(options["meet"]) as f:
        host, port = f.read().split()
    return (host, int(port)), None


def function_of(program):
    spec = importlib.util.spec_from_file_location("program", program)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, "agent", None)


def main():
    options, line = {}, sys.argv[1:]
    while "=" in line[0]:
        name, _, value = line.pop(0).partition("=")
        options[name] = value
    sys.path.insert(0, os.path.dirname(line[0]))
    nodes, node, ranks = int(options.get("nodes", 1)), int(options.get("node", 0)), int(options["ranks"])
    address, server = meet(options, nodes, node)
    agents = Member(address, "agents", nodes, node)
    memory = [os.memfd_create(f"rank{local}") for local in range(ranks)]
    for fd in memory:
        os.truncate(fd, MEMORY)
    work = function_of(line[0])
    failure = []

    def body():
        try:
            work(Member(address, "work", nodes, node), node, memory, line[1:])
        except BaseException as e:
            failure.append(e)
            raise
    thread = threading.Thread(target=body, daemon=True)
    if work:
        thread.start()
    for turn in range(int(options.get("restarts", 0)) + 1):
        children = start(address, nodes, node, ranks, turn, memory, line)
        try:
            all = watch(agents, children, lambda: failure, thread.is_alive)
        finally:
            for c in children:
                c.kill()
                c.wait()
        if "failed" not in all:
            agents.leave()
            if server:
                server.await_all("agents", nodes)
            return 0
    return 1


def watch(agents, children, failed, busy):
    """Returns the states of all nodes, when all are done, or one has failed."""
    while True:
        ends = [c.poll() for c in children]
        all = agents.allgather("failed" if failed() or any(ends) else "running" if None in ends or busy() else "done")
        if "failed" in all or "running" not in all:
            return all
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())

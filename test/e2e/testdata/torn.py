"""Writes until it is killed, and checks later what was promised.

torn.py write DIRECTORY LOGS   as a rank: files of its own, blocks and lines of files that all write to, names. What has
                               returned goes into a file of LOGS, outside of the mount.
torn.py check DIRECTORY LOGS   any process: all that LOGS tells is there. Prints how many promises it has looked at.
"""
import errno, os, re, sys

BLOCK = 10007


def env(*names):
    return next(int(os.environ[n]) for n in names if n in os.environ)


def content(who, number, length):
    word = b"%s.%d;" % (who.encode(), number)
    return (word * (length // len(word) + 1))[:length]


def length(number):
    return 1 + number * 7919 % 90000


def surely(change, path, there):
    """Changes a name. Where the index was killed meanwhile that is EIO, whether it was done or not: `there` is what path is then."""
    try:
        return change()
    except OSError as e:
        if e.errno != errno.EIO:
            raise
    try:
        os.lstat(path)
        is_there = True
    except FileNotFoundError:
        is_there = False
    return None if is_there == there else change()


def create(path):
    flags = os.O_WRONLY | os.O_CREAT
    fd = surely(lambda: os.open(path, flags | os.O_EXCL, 0o600), path, True)
    return os.open(path, flags, 0o600) if fd is None else fd


def write(base, logs):
    rank, size = env("OMPI_COMM_WORLD_RANK", "PMI_RANK"), env("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    who = "%s-%d" % (os.environ["ROUND"], rank)
    log = os.open(os.path.join(logs, who), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(*words):
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    tell("pid", os.getpid())
    os.makedirs(base, exist_ok=True)
    shared = os.open(os.path.join(base, "shared-" + os.environ["ROUND"]), os.O_RDWR | os.O_CREAT, 0o600)
    lines = os.open(os.path.join(base, "lines"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for i in range(1 << 30):
        own = os.path.join(base, "own-%s-%d" % (who, i))
        fd = create(own)
        data = content(who, i, length(i))
        half = len(data) // 2
        os.write(fd, data[:half])
        if i % 2:
            os.fsync(fd)
        tell("bytes", own, who, i, half)
        os.write(fd, data[half:])
        os.close(fd)
        tell("bytes", own, who, i, len(data))
        os.pwrite(shared, content(who, i, BLOCK), (i * size + rank) * BLOCK)
        os.fsync(shared)
        tell("block", os.path.join(base, "shared-" + os.environ["ROUND"]), who, i, (i * size + rank) * BLOCK)
        os.write(lines, b"%s.%d\n" % (who.encode(), i))
        os.fsync(lines)
        tell("line", os.path.join(base, "lines"), "%s.%d" % (who, i))
        newest = os.path.join(base, "newest-" + who)
        with open(newest + ".tmp", "wb") as f:
            f.write(content(who, i, length(i)))
        surely(lambda: os.rename(newest + ".tmp", newest), newest + ".tmp", False)
        tell("newest", newest, who, i)
        surely(lambda: os.mkdir(own + ".d"), own + ".d", True)
        tell("there", own + ".d")
        if i % 3 == 2:
            before = os.path.join(base, "own-%s-%d" % (who, i - 1))
            tell("forget", before)
            surely(lambda: os.unlink(before), before, False)
            tell("gone", before)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def check(base, logs):
    told, forgotten, last, sizes = [], set(), {}, 0
    for name in sorted(os.listdir(logs)):
        for line in read(os.path.join(logs, name)).decode().splitlines():
            words = line.split(" ")
            if words[0] == "pid":
                continue
            words[1] = os.path.join(base, os.path.basename(words[1]))
            told.append(words)
            if words[0] == "forget":
                forgotten.add(words[1])
            elif words[0] == "newest":
                last[words[1]] = int(words[3])
    files, looked, wrong = {}, 0, []

    def of(path):
        if path not in files:
            files[path] = read(path)
        return files[path]

    for kind, path, *words in told:
        good = True
        try:
            if kind == "bytes" and path not in forgotten:
                who, i, n = words[0], int(words[1]), int(words[2])
                got = of(path)
                good = len(got) >= n and got == content(who, i, length(i))[:len(got)]
                words.append("of %d" % len(got))
            elif kind == "block":
                who, i, off = words[0], int(words[1]), int(words[2])
                good = of(path)[off:off + BLOCK] == content(who, i, BLOCK)
            elif kind == "line":
                if path not in files:
                    files[path] = set(re.split(rb"[\n\0]+", read(path)))
                good = words[0].encode() in files[path]
            elif kind == "newest" and int(words[1]) == last[path]:
                who, i = words[0], int(words[1])
                # The next one may have come before the process could tell.
                good = of(path) in [content(who, j, length(j)) for j in (i, i + 1)]
            elif kind == "there":
                good = os.path.isdir(path)
            elif kind == "gone":
                good = not os.path.exists(path)
        except OSError as e:
            good, words = False, words + [str(e)]
        looked += 1
        if not good:
            wrong.append(" ".join([kind, path] + words))
    for line in wrong[:10]:
        print(line, file=sys.stderr)
    print(looked if not wrong else "%d of %d promises broken" % (len(wrong), looked))
    sys.exit(1 if wrong else 0)


try:
    {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
except OSError as e:
    print(e, file=sys.stderr)
    sys.exit(1)

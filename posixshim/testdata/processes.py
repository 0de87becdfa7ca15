# A Python program that starts processes in the directory sys.argv[1].
import mmap
import multiprocessing
import os
import shutil
import subprocess
import sys

d = sys.argv[1]


def work(i):
    with open(f"{d}/part{i}", "w") as f:
        f.write(str(i) * 10)
    shutil.copyfile(f"{d}/part{i}", f"{d}/copy{i}")
    with open(f"{d}/part{i}") as f, open(f"{d}/copy{i}") as copy:
        with mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) as m:
            return f.read(), m[:]


def append(name, text, times):
    with open(name, "ab", buffering=0) as f:
        for _ in range(times):
            f.write(text)


def main():
    log = open(f"{d}/log", "a+")
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(3) as pool:
            print(method, pool.map(work, range(6)))
        others = [context.Process(target=append, args=(f"{d}/{method}", b"%d" % i * 100, 50)) for i in range(3)]
        for p in others:
            p.start()
        for p in others:
            p.join()
        with open(f"{d}/{method}", "rb") as f:
            parts = [f.read(100) for _ in range(150)]
        print([p.exitcode for p in others], sorted(parts) == sorted(b"%d" % i * 100 for i in range(3) for _ in range(50)))
    log.write("parent\n")
    log.flush()
    done = subprocess.run(["sh", "-c", "echo child; echo error >&2"], stdout=log, stderr=subprocess.STDOUT)
    print(done.returncode)
    with open(f"{d}/part3") as f:
        print(subprocess.run("cat; echo x", shell=True, stdin=f, stdout=subprocess.PIPE).stdout)
    with open(f"{d}/out", "wb") as f:
        for close_fds in (True, False):
            subprocess.run(["echo", str(close_fds)], stdout=f, close_fds=close_fds, check=True)
    print(open(f"{d}/out").read())
    fd = os.open(f"{d}/passed", os.O_RDWR | os.O_CREAT)
    print(subprocess.run(["sh", "-c", f"echo passed >&{fd}"], pass_fds=(fd,)).returncode, os.lseek(fd, 0, os.SEEK_CUR))
    print(os.system(f"cp {d}/part1 {d}/copy && cat {d}/copy"))
    with os.popen(f"wc -c < {d}/part2") as p:
        print(p.read())
    if os.fork() == 0:
        log.write("forked\n")
        log.flush()
        os._exit(0)
    os.wait()
    log.write("end\n")
    log.seek(0)
    print(log.read())
    print(sorted(os.listdir(d)))
    sys.stdout.flush()
    same = "import os, sys; print(os.getpid() == int(sys.argv[1]))"
    os.execv(sys.executable, [sys.executable, "-c", same, str(os.getpid())])


if __name__ == "__main__":
    main()

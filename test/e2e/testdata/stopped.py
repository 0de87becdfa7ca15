"""Two ranks of a job with one tree: `one` is stopped by a signal, `other` goes on beside it, and then without the index.

stopped.py one | other DIRECTORY: `other` waits for files go1 and go2 of a directory outside of the mount.
"""
import os, sys, time


def wait(name):
    while not os.path.exists(os.path.join(sys.argv[2], name)):
        time.sleep(0.01)


if sys.argv[1] == "one":
    f = os.open("/nvmecr/f", os.O_RDWR | os.O_CREAT)
    os.write(f, b"synced")
    os.fsync(f)
    os.write(f, b", and not")
    print("one", os.getpid(), flush=True)
    time.sleep(1000)
os.mkdir("/nvmecr/d")
print("other", os.getpid(), flush=True)
wait("go1")
with open("/nvmecr/f", "rb") as f:
    print(f.read().decode(), flush=True)
with open("/nvmecr/d/g", "wb") as g:
    g.write(b"x" * 100000)
print("goes on", flush=True)
wait("go2")
begin = time.monotonic()
try:
    os.stat("/nvmecr/f")
    print("answered after %.1f s" % (time.monotonic() - begin), flush=True)
except OSError as e:
    print("%s after %.1f s" % (e.strerror, time.monotonic() - begin), flush=True)

"""Files with Python's standard library, in the directory given."""
import dbm.dumb
import errno
import fcntl
import filecmp
import glob
import gzip
import io
import mmap
import os
import pathlib
import pickle
import shelve
import shutil
import sqlite3
import sys
import tarfile
import tempfile
import zipfile

top = sys.argv[1]
os.chdir(top)


def step(name):
    print("--", name)


def fails(call, *args, **kwargs):
    try:
        print("no error", call(*args, **kwargs))
    except OSError as e:
        print(type(e).__name__, errno.errorcode[e.errno])


step("open")
with open("text", "w") as f:
    for i in range(1000):
        print("line", i, file=f)
    print(f.tell(), f.fileno() >= 0, f.isatty())
with open("text") as f:
    print(f.readline(), f.read(5), sum(1 for _ in f))
with open("text", "r+b", buffering=0) as f:
    f.seek(-4, io.SEEK_END)
    print(f.read(), f.tell())
    f.seek(0)
    f.write(b"LINE")
with open("text", "ab") as f:
    f.write(b"end\n")
    print(f.tell())
with open("wide", "w", encoding="utf-16") as f:
    f.write("äöü\n" * 10)
print(open("wide", encoding="utf-16").read() == "äöü\n" * 10)
fails(open, "text", "x")
fails(open, "nope")
fails(open, ".", "w")
with open("text", opener=lambda p, fl: os.open(p, fl, dir_fd=os.open(top, os.O_RDONLY))) as f:
    print(f.readline())

step("os")
fd = os.open("low", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
print(os.write(fd, b"0123456789"), os.pread(fd, 4, 2), os.pwrite(fd, b"ab", 4), os.lseek(fd, 0, 0))
print(os.readv(fd, [bytearray(3), bytearray(20)]), os.writev(fd, [b"xy", b"z"]))
os.ftruncate(fd, 12)
os.fsync(fd)
os.fdatasync(fd)
print(os.fstat(fd).st_size, os.get_inheritable(fd), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR)
dup = os.dup(fd)
os.lseek(fd, 3, 0)
print(os.read(dup, 3))
os.close(fd)
print(os.read(dup, 3))
os.close(dup)
fails(os.close, dup)
os.makedirs("a/b/c")
os.makedirs("a/b/c", exist_ok=True)
fails(os.mkdir, "a")
fails(os.rmdir, "a")
os.link("low", "a/hard")
os.symlink("../low", "a/soft")
print(os.readlink("a/soft"), os.stat("a/soft").st_nlink, os.path.islink("a/soft"), os.path.samefile("low", "a/soft"))
print(os.path.realpath("a/soft") == os.path.join(os.path.realpath(top), "low"))
os.chmod("low", 0o640)
os.utime("low", ns=(10**18 + 1, 10**18 + 2))
st = os.stat("low")
print(oct(st.st_mode), st.st_atime_ns, st.st_mtime_ns)
os.rename("low", "high")
os.replace("high", "low")
print(sorted(os.listdir()), sorted(e.name for e in os.scandir("a") if e.is_dir() or e.is_symlink()))
print([(r, sorted(d), sorted(f)) for r, d, f in os.walk("a")])
print(os.access("low", os.R_OK), os.access("low", os.X_OK), os.path.getsize("low"))
root = os.open("/", os.O_RDONLY)
print(os.stat(top[1:], dir_fd=root).st_mode == os.stat(top).st_mode)
os.close(root)
here = os.open(".", os.O_RDONLY)
os.mkdir("at", dir_fd=here)
os.rename("at", "at2", src_dir_fd=here, dst_dir_fd=here)
os.rmdir("at2", dir_fd=here)
os.chdir("a")
os.fchdir(here)
print(os.getcwd() == os.path.realpath(top), os.listdir(here) == os.listdir("."))
os.close(here)
print(os.statvfs(".").f_bsize > 0)
os.truncate("low", 5)
print(open("low", "rb").read())

step("pathlib")
p = pathlib.Path(top)
(p / "dir" / "sub").mkdir(parents=True)
(p / "dir" / "file").write_text("text")
(p / "dir" / "sub" / "file").write_bytes(b"bytes")
print(sorted(str(x.relative_to(p)) for x in p.rglob("file")), (p / "dir/file").read_text(), (p / "no").exists())
(p / "dir/file").touch()
(p / "dir/file").rename(p / "dir/moved")
print(sorted(glob.glob("dir/**", recursive=True)), sorted(x.name for x in p.iterdir()))

step("shutil")
shutil.copy("text", "copy")
shutil.copyfile("text", "copy2")
shutil.copy2("low", "copy3")
print(os.stat("copy3").st_mtime_ns == os.stat("low").st_mtime_ns, filecmp.cmp("text", "copy", shallow=False))
shutil.copytree("a", "tree", symlinks=True)
shutil.move("tree", "moved")
outside = tempfile.mkdtemp()
shutil.move("moved", outside)
shutil.copytree(outside + "/moved", "back", symlinks=True)
shutil.rmtree(outside)
print(sorted(os.listdir("back")), shutil.disk_usage(top).total > 0)
shutil.rmtree("back")
shutil.make_archive("archive", "zip", "dir")
print(sorted(zipfile.ZipFile("archive.zip").namelist()))
os.remove("archive.zip")

step("tempfile")
with tempfile.TemporaryFile(dir=top) as f:
    f.write(b"temporary")
    f.seek(0)
    print(f.read())
with tempfile.NamedTemporaryFile(dir=top) as f:
    print(os.path.dirname(f.name) == top, oct(os.stat(f.name).st_mode))
    name = f.name
print(os.path.exists(name))
with tempfile.TemporaryDirectory(dir=top) as d:
    open(d + "/x", "w").close()
print(os.path.exists(d))
with tempfile.SpooledTemporaryFile(10, dir=top) as f:
    f.write(b"x" * 100)
    f.seek(0)
    print(len(f.read()))

step("mmap")
with open("text", "rb") as f:
    with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
        print(len(m), m.find(b"line 999"), m[-4:])
    with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as m:
        m[0:4] = b"copy"
        print(m[0:6])
    print(f.read(6))

step("locks")
with open("low") as f:
    fcntl.flock(f, fcntl.LOCK_EX)
    fcntl.flock(f, fcntl.LOCK_UN)
with open("low", "r+") as f:
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10)
    fcntl.lockf(f, fcntl.LOCK_UN, 10)
print("locked")

step("containers")
with gzip.GzipFile("numbers.gz", "wb", mtime=0) as f:
    f.write(b"".join(b"%d\n" % i for i in range(100000)))
print(sum(map(int, gzip.open("numbers.gz"))))
with open("pickle", "wb") as f:
    pickle.dump({"a": list(range(1000)), "b": bytes(100000)}, f)
print(sum(pickle.load(open("pickle", "rb"))["a"]))
with shelve.Shelf(dbm.dumb.open("shelf")) as s:
    s["one"], s["two"] = 1, [2] * 1000
with shelve.Shelf(dbm.dumb.open("shelf")) as s:
    print(sorted(s), len(s["two"]))
with tarfile.open("tar", "w:xz") as t:
    t.add("dir")
print(sorted(tarfile.open("tar").getnames()))
os.remove("tar")
db = sqlite3.connect("db")
db.execute("create table t (i)")
with db:
    db.executemany("insert into t values (?)", ((i,) for i in range(10000)))
try:
    with db:
        db.execute("delete from t")
        raise ValueError
except ValueError:
    pass
print(db.execute("select sum(i) from t").fetchone())
db.close()

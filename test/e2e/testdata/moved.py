"""A rank that has files open for reading before it writes: they stay what they are, whatever becomes of their names.

moved.py HOW DIRECTORY
"""
import os, subprocess, sys

how, base = sys.argv[1], sys.argv[2]
name = os.path.join(base, "f")
outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "OMPI_"))}
with open(name, "w") as f:
    f.write("data")
if how == "yielded":
    fd = os.open(name, os.O_RDONLY)
    os.unlink(name)
    # In the environment of the rank: it asks this process for the partition.
    subprocess.check_call([sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write('x')", os.path.join(base, "child")], close_fds=True)
else:
    # A process that has only read so far.
    subprocess.check_call([sys.executable, "-c", """
import os, subprocess, sys
name, how, outside = sys.argv[1], sys.argv[2], eval(sys.argv[3])
fd = os.open(name, os.O_RDONLY)
if how == "unlinked":
    subprocess.check_call(["rm", name], env=outside)
else:
    subprocess.check_call(["sh", "-c", 'mv "$0" "$0.moved"; echo other > "$0"', name], env=outside)
open(name + ".own", "w").write("the first write")
assert os.pread(fd, 100, 0) == b"data"
""", name, how, repr(outside)])
    sys.exit()
assert os.pread(fd, 100, 0) == b"data"

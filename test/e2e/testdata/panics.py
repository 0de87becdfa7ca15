# panics.py CALL: the fault that panics_test.go has built in is met by one call, while another thread makes calls. The program goes on.
import errno, os, sys, threading

FILE = "/nvmecr/file"
calls = {
    "read": lambda: os.pread(fd, 10, 0x7A11),         # in posixshim
    "locked": lambda: os.pread(fd, 10, 0x7A12),       # in microfs, which holds its lock
    "name": lambda: os.mkdir("/nvmecr/dir", 0o751),   # in the index of a tree
    "child": lambda: child(),                         # in the process that has the file, for a child of it
}


def child():
    pid = os.fork()
    if pid == 0:
        try:
            os.pread(fd, 10, 0x7A11)
        except OSError as e:
            os._exit(e.errno)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise OSError(status, os.strerror(status))


def others():
    while not done.is_set():
        try:
            os.pread(fd, 10, 0)
        except OSError as e:
            assert e.errno == errno.EIO, e


fd = os.open(FILE, os.O_RDWR | os.O_CREAT)
os.write(fd, b"0123456789" * 10000)
done = threading.Event()
thread = threading.Thread(target=others)
if sys.argv[1] != "child":  # that forks
    thread.start()
try:
    calls[sys.argv[1]]()
    print("nothing happened")
except OSError as e:
    print(errno.errorcode[e.errno])
try:
    os.mkdir("/nvmecr/another")
    print("made")
except OSError as e:
    print("then", errno.errorcode[e.errno])
done.set()
if thread.ident:
    thread.join()
print("goes on")

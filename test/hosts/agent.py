#!/usr/bin/python3
"""agent.py [-OPTION...] HOST COMMAND...: what ssh is to launchers of MPI. The process of the test starts the command."""
import json, os, socket, sys

args = sys.argv[1:]
while args and args[0].startswith("-"):
    args.pop(0)
s = socket.socket(socket.AF_UNIX)
s.connect(os.path.join(os.path.dirname(os.path.realpath(__file__)), "agent"))
request = json.dumps({"host": args[0], "command": " ".join(args[1:])}).encode()
socket.send_fds(s, [request], [0, 1, 2])
status = s.recv(16)
sys.exit(int(status or b"255"))

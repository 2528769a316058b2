"""Stands for `python` in a shell: has a fork server run the interpreter's words, see `forked_command`.

Arguments: the server's name, then those words. It has no imports of ours: it is started hundreds of times.
"""

import json
import os
import socket
import sys

name, *words = sys.argv[1:]
folder = os.getcwd()  # noqa: PTH109 - pathlib takes longer to import than all else
message = {"asked": "python", "arguments": words, "folder": folder, "environment": dict(os.environ)}
data = json.dumps(message).encode()
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(f"\0{name}")
    socket.send_fds(connection, [len(data).to_bytes(8, "big")], [1, 2])
    connection.sendall(data)
    said = b""
    while read := connection.recv(64):
        said += read
code = int(said.decode().split("code ")[1])
os._exit(code if code >= 0 else 128 - code)

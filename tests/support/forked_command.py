"""The command, forked from a process that has imported it: hundreds of runs need not import torch each.

What is forked is the front, its template and through that its workers; from there on everything is as in a
process of its own. That starting one works, and what the front imports, is tested with real processes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from gradverify.session import template

SERVER = Path(__file__).with_name("fork_server.py")
CLIENT = Path(__file__).with_name("fork_client.py")

BEFORE_IT_STARTS = ("LANG", "LC_", "PYTHON")
"""Beginnings of variables that an interpreter reads at its start alone."""

SET_IN_A_TEMPLATE = ("PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING", *template.ONE_THREAD)
"""Variables that every template has alike."""

UNSET = ("NO_COLOR", "FORCE_COLOR", "PYTHONPATH", "PYTHONWARNINGS", "TERM")
"""What changes how text looks, or what is imported."""

LIMIT = 1200
"""Seconds for one command on a busy machine."""

started = template.begun
"""What begins a template as a process of its own."""


@dataclass(frozen=True)
class Ended:
    """What a command left."""

    code: int
    out: str
    err: str


class Forked:
    """What a server forked, as far as `subprocess.Popen` has it. It is killed where this is forgotten."""

    def __init__(self, address, message, descriptors):
        data = json.dumps(message).encode()
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(LIMIT)
        self._connection.connect(address)
        socket.send_fds(self._connection, [len(data).to_bytes(8, "big")], descriptors)
        self._connection.sendall(data)
        self._said = b""
        self.returncode = None
        self.pid = self._reported("pid")

    def wait(self, timeout=None):
        """Wait until it has ended, and return what with. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = self._reported("code")
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("what was forked", timeout or 0.0) from None
            self._connection.close()
        return self.returncode

    def poll(self):
        """What it ended with; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def kill(self):
        """Kill it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self):
        """Have the server kill its process group, if it still runs."""
        self._connection.close()

    def _reported(self, word):
        while f"{word} " not in (said := self._said.decode()) or not said.endswith("\n"):
            read = self._connection.recv(64)
            assert read, "the fork server has ended; what it said is on stderr"
            self._said += read
        return next(int(line.split()[1]) for line in said.splitlines() if line.startswith(word))


class ForkServer:
    """A process that forks the command; a context manager. It has imported torch, or the front alone."""

    def __init__(self, environment, *, has_torch=True):
        self.environment = environment
        self.address = f"\0gradverify-tests-{uuid.uuid4()}"
        lifeline, self._lifeline = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen()
            words = [listener.fileno(), lifeline, self.address[1:], "torch" if has_torch else "front"]
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(SERVER), *map(str, words)],
                pass_fds=(listener.fileno(), lifeline),
                env={**environment, **template.ONE_THREAD},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the tests' alone
            )
        os.close(lifeline)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._lifeline)
        self._process.wait()

    def run(self, asked, arguments, folder, environment, limit=LIMIT):
        """Run the command, or a Python program, to its end."""
        message = {
            "asked": asked,
            "arguments": arguments,
            "folder": str(folder),
            "environment": environment,
        }
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            forked = Forked(self.address, message, [out.fileno(), err.fileno()])
            try:
                code, late = forked.wait(limit), ""
            except subprocess.TimeoutExpired:
                code, late = 1, f"\nnot done within {limit} s"
            finally:
                forked.close()
            out.seek(0)
            err.seek(0)
            ended = Ended(code, out.read().decode(), err.read().decode())
        assert not late, f"{ended.out}\n{ended.err}{late}"
        return ended


def run(arguments, folder, environment=None):
    """Run the command to its end: forked, or in a process of its own where its environment asks for that."""
    return _run("command", list(map(str, arguments)), folder, environment)


def python(words, folder, environment=None, limit=LIMIT):
    """Run a Python program in the same way, which `words` name as for the interpreter."""
    return _run("python", list(map(str, words)), folder, environment, limit)


def script(options):
    """A shell script that stands for `python` with options; forked, unless more is to be imported from."""
    name = server().address[1:] if CAN_FORK else ""
    fork = f'exec "{sys.executable}" -I -S "{CLIENT}" {name} {options} "$@"'
    plain = f'exec "{sys.executable}" {options} "$@"'
    return f'#!/bin/sh\n[ "{name}" ] && [ -z "$PYTHONPATH" ] && {fork}\n{plain}\n'


def begun(control, lifeline, log, environment):
    """What `gradverify.session.template.begun` does, by a fork."""
    address, of_server = (_FORKED_BY or (server().address, server().environment)) if CAN_FORK else ("", {})
    if not CAN_FORK or _of_libraries(environment) != _of_libraries(of_server):
        return started(control, lifeline, log, environment)
    message = {"asked": "template", "environment": {**environment, **template.ONE_THREAD}}
    return Forked(address, message, [control, lifeline, log])


def forked_by(address, environment):
    """Note who forks for the processes that this one forks, and the variables that it was started with."""
    _FORKED_BY[:] = address, environment


@functools.cache
def server():
    """This process's own server."""
    ours = ForkServer(plain_environment())
    atexit.register(ours.__exit__)
    return ours


def plain_environment(**more: str) -> dict[str, str]:
    """The tests' own environment, less what changes how text looks."""
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    plain = {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **plain, "TERM": "xterm", **more}


def _run(asked, words, folder, environment, limit=LIMIT):
    environment = plain_environment() if environment is None else environment
    if CAN_FORK and _read_at_start(environment) == _read_at_start(plain_environment()):
        return server().run(asked, words, folder, environment, limit)
    done = subprocess.run(
        [sys.executable, "-P", *(["-m", "gradverify"] if asked == "command" else []), *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=limit,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def _read_at_start(environment):
    return {name: value for name, value in environment.items() if name.startswith(BEFORE_IT_STARTS)}


def _of_libraries(environment):
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(template.READ_BY_LIBRARIES) and name not in SET_IN_A_TEMPLATE
    }


CAN_FORK = sys.platform == "linux" and hasattr(os, "pidfd_open")
_FORKED_BY = []

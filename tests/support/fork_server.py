"""The process that `forked_command` starts: it imports the command and the verifier, and forks them.

Every connection is one request: two to three descriptors and a JSON object. It is sent `pid N`, and at last
`code N`; where its other side closes before that, what was forked for it is killed. All ends with the process
that started this one, whose end of a pipe then closes.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path

from gradverify import cli, lint, report, session, source, spec
from gradverify.session import template
from gradverify.spec import schema

sys.path.append(str(Path(__file__).parent))
import forked_command
import verdicts_only

sys.path.pop()

MOST_DESCRIPTORS = 3
"""stdout and stderr of a program; the control socket, the lifeline and the log of a template."""

OPTIONS = ("-P", "-u")
"""Of the interpreter: what they ask for is so anyway, or makes no difference to what is read at the end."""

NOT_REWRITTEN = ("-W", "ignore:Module already imported so cannot be rewritten")
"""For pytest, which asks whether what it loads is loaded already."""

REHEARSED = (("rules",), ("explain", "GV101"), ("check", "--help"))
"""Commands that need no torch, whose libraries every other command loads as well."""

READ_VARIABLES = ("typer.rich_utils",)
"""Modules that read variables when they are loaded, which differ from command to command."""

FRONT = (session, report, spec, lint, source)
FOR_MANY = (
    "gradverify.verifier.infer.deduce",
    "gradverify.verifier.diagnose.findings",
    "gradverify.verifier.ranks.program",  # what torch registers with it asks for the file of a main module
)
"""What a worker loads on request, and many tests ask for."""


def preload_front():
    """Import what commands load, as the template does for its workers: else each loads it for 0.2 s."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            before = set(sys.modules)
            _take_streams(*[os.open(os.devnull, os.O_WRONLY)] * 2)
            for words in REHEARSED:
                sys.argv = ["gradverify", *words]
                with contextlib.suppress(SystemExit):
                    cli.main()
            os.write(write, "\n".join(name for name in sys.modules if name not in before).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as reported:
        names = reported.read().split()
    os.waitpid(pid, 0)
    for package in FRONT:
        names += [module.name for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]
    _import(names)
    for entry in (schema.FileEntry, schema.FunctionEntry, schema.HookedEntry):
        entry.model_rebuild()  # which is else put off until a spec is read


def _import(names):
    for name in names:
        if name not in READ_VARIABLES:
            with contextlib.suppress(Exception):  # what cannot be imported fails where it is asked for
                importlib.import_module(name)


def serve(listener, lifeline):
    """Answer until nobody holds the other end of the lifeline."""
    running = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(lifeline, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is lifeline:
                    for pid, _ in running.values():
                        _kill(pid)
                    return
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    pid = _begin(connection)
                    handle = os.pidfd_open(pid)
                    running[handle] = pid, connection
                    selector.register(handle, selectors.EVENT_READ)
                    selector.register(connection, selectors.EVENT_READ, pid)
                elif key.data is not None:  # whoever asked is gone
                    _kill(key.data)
                    selector.unregister(key.fileobj)
                else:
                    _tell_its_end(*running.pop(key.fd), selector)
                    selector.unregister(key.fd)
                    os.close(key.fd)


def _begin(connection):
    head, passed, _, _ = socket.recv_fds(connection, 8, MOST_DESCRIPTORS)
    data = b""
    while len(data) < int.from_bytes(head, "big"):
        data += connection.recv(1 << 16)
    message = json.loads(data)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:  # a fork copies the locks of the others, and nobody lets them go
        raise RuntimeError(f"{threads} threads")
    pid = os.fork()
    if not pid:
        try:
            _become(message, passed)
        except BaseException:  # noqa: BLE001 - told as an interpreter tells what it ends with
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        finally:
            os._exit(1)
    for descriptor in passed:
        os.close(descriptor)
    connection.sendall(f"pid {pid}\n".encode())
    return pid


def _tell_its_end(pid, connection, selector):
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.sendall(f"code {os.waitstatus_to_exitcode(status)}\n".encode())
    with contextlib.suppress(KeyError):
        selector.unregister(connection)
    connection.close()


def _kill(pid):
    for kill in (os.kill, os.killpg):  # it may have no group of its own yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _become(message, passed):
    """What was asked for, with nothing open but what came with the request."""
    os.setsid()
    end = 3
    for descriptor in sorted(passed):
        os.closerange(end, descriptor)
        end = descriptor + 1
    os.closerange(end, 1024)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(message["environment"])
    verdicts_only.apply()
    if message["asked"] == "template":
        from gradverify.verifier.process import template as of_verifier  # noqa: PLC0415 - not where torch is missing

        control, lifeline, log = passed
        _take_streams(log, log, "backslashreplace")
        of_verifier.main(control, lifeline)
    _take_streams(*passed)
    for descriptor in passed:
        os.close(descriptor)
    os.chdir(message["folder"])
    template.begun = forked_command.begun
    _run(
        message["arguments"] if message["asked"] == "python" else ["-m", "gradverify", *message["arguments"]]
    )


def _take_streams(out, err, errors="strict"):
    os.dup2(out, 1)
    os.dup2(err, 2)
    for name, number, how in (("stdout", 1, errors), ("stderr", 2, "backslashreplace")):
        stream = open(number, "w", encoding="utf-8", errors=how, buffering=1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(words):
    """A Python program, as the interpreter runs it with such words."""
    code = 1
    try:
        _main(words)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:  # noqa: BLE001 - told as an interpreter tells what it ends with
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(int(code))


def _main(words):
    while words and words[0] in OPTIONS:
        words = words[1:]
    first, *rest = words
    sys.modules["__main__"].__file__ = ""
    if first == "-m" and rest[0] == "gradverify":
        sys.argv = ["gradverify", *rest[1:]]
        cli.main()
    elif first == "-m":
        sys.argv = [rest[0], *(NOT_REWRITTEN if rest[0] == "pytest" else ()), *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")


def main(listener, lifeline, name, what):
    forked_command.forked_by(f"\0{name}", dict(os.environ))
    if what == "torch":
        from gradverify.verifier.process.template import preload  # noqa: PLC0415 - it imports torch

        preload()
        _import(FOR_MANY)
    preload_front()
    gc.freeze()
    serve(socket.socket(fileno=int(listener)), int(lifeline))


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)

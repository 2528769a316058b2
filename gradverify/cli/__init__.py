"""The command line: parse, run a session, render, exit. No other logic lives here."""

from gradverify.cli.commands import main

__all__ = ["main"]

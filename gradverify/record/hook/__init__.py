"""The hook inside the user's process. It changes no result and no exception; a call costs microseconds."""

from .installing import install

__all__ = ["install"]

"""Reports are the same with inputs that were kept, which spare calls; `--no-cache` keeps nothing."""

import pytest

SOURCE = """
from pathlib import Path

from torch.autograd import Function


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, weight):
        with Path(__file__).with_name("calls").open("a") as noted:
            noted.write(".")
        ctx.save_for_backward(x, weight)
        return (x @ weight).sum()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, grad * x
"""


@pytest.fixture
def here(place):
    folder = place()
    (folder.folder / "scaled.py").write_text(SOURCE)
    return folder


def test_reports_are_the_same(here):
    counted = here.folder / "calls"

    def checked(*options):
        counted.unlink(missing_ok=True)
        ran = here("check", "scaled.py", "--format", "json", *options)
        return ran.code, ran.out, len(counted.read_text())

    *none, inferring = checked("--no-cache")
    assert not (here.folder / ".gradverify_cache").exists()
    *first, as_many = checked()
    *again, fewer = checked()
    assert none == first == again
    assert fewer < inferring == as_many

    for kept in (here.folder / ".gradverify_cache" / "inputs").iterdir():
        kept.write_text("of another program")
    *damaged, calls = checked()
    assert (damaged, calls) == (none, inferring)


def test_the_last_run_is_not_known_without_a_cache(here):
    ran = here("check", "scaled.py", "--lf", "--no-cache")
    assert ran.code == 2
    assert "--no-cache" in ran.err

"""What a module with many targets costs: its source is read once, not once for each of them."""

import ast

import pytest

from gradverify.session.listing import list_targets
from gradverify.session.request import Progress, Request
from gradverify.session.selection import parse_target

HEAD = "# many targets\nimport torch\nfrom torch.autograd import Function\n"
ONE = """
class F{0}(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad

f{0} = F{0}.apply
"""


@pytest.mark.parametrize("count", [2, 12])
def test_a_source_is_parsed_a_few_times_whatever_the_number_of_targets(tmp_path, monkeypatch, count):
    monkeypatch.chdir(tmp_path)
    source = HEAD + "".join(ONE.format(k) for k in range(count))
    (tmp_path / "many.py").write_text(source)
    parse, parsed = ast.parse, []

    def counting(text, *rest, **options):
        reported = text if isinstance(text, str) else bytes(text).decode()
        if reported.startswith("# many targets") and len(reported) >= len(source):
            parsed.append(reported)
        return parse(text, *rest, **options)

    monkeypatch.setattr(ast, "parse", counting)
    listing = list_targets(Request((parse_target("many.py"),), in_process=True), Progress())
    assert [one.reason for one in listing.targets] == [""] * count
    assert len(parsed) <= 12

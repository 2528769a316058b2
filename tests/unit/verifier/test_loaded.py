"""What a worker loads: of torch no more than a check needs, of the verifier no more than is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

HEAVY = (
    "sympy",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor",
    "torch.fx.experimental.symbolic_shapes",
    "numpy.testing",
)
"""Half a second to two seconds each."""

ON_REQUEST = (
    "gradverify.verifier.diagnose.findings",
    "gradverify.verifier.infer.deduce",
    "gradverify.verifier.diagnose.edits",
    "gradverify.verifier.diagnose.ladder",
    "gradverify.verifier.suggest",
)

FUNCTIONS = """
    import torch


    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * 3 * x**2


    class WithRules(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * x.cos()

        @staticmethod
        def jvp(ctx, tangent):
            (x,) = ctx.saved_tensors
            return tangent * x.cos()
"""

CHECK = """
    import json, sys

    from gradverify.events import CaseVerified, Collect, Verify
    from gradverify.model import Case, InputSource, Settings, Target, TargetKind, TargetPlan, TensorInput
    from gradverify.verifier.process.worker import serve_here

    path = sys.argv[1]
    server, _ = serve_here()
    list(server.answer(Collect(path, path)))
    case = Case("base", 0, inputs=(TensorInput("x", (2, 3)),))
    for name in ("Cube", "WithRules"):
        target = Target(name, name, TargetKind.FUNCTION, path, 1)
        plan = TargetPlan(name, name, InputSource.SPEC, cases=(case,))
        events = list(server.answer(Verify(target, plan, Settings())))
        assert any(isinstance(event, CaseVerified) for event in events), events
        found = [event.finding for event in events if hasattr(event, "finding")]
        assert not any(one.severity == "error" for one in found), events
    print(json.dumps(sorted(sys.modules)))
"""


def test_right_functions_are_verified_without_torchs_compiler_and_what_explains_mistakes(tmp_path):
    module = tmp_path / "functions.py"
    module.write_text(textwrap.dedent(FUNCTIONS), "utf-8")
    command = [sys.executable, "-c", textwrap.dedent(CHECK), str(module)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(json.loads(ran.stdout.splitlines()[-1]))
    assert "gradverify.verifier.questions.orders" in loaded
    assert loaded.isdisjoint(HEAVY)
    assert loaded.isdisjoint(ON_REQUEST)

"""Functions that compute in 8 bits are not verified, and not failed."""

import json


def test_what_eight_bits_hide_is_said(place):
    ran = place("eight_bits")("check", "functions.py", "--format", "json")
    assert ran.code == 1, ran.err
    returned, inside = json.loads(ran.out)["targets"]
    assert (returned["status"], returned["findings"][0]["code"]) == ("unchecked", "GV001")
    assert "forward returns torch.float8_e4m3fn" in returned["findings"][0]["message"]
    assert inside["status"] == "passed"
    notes = {f["code"]: f["message"] for f in inside["findings"]}
    assert "forward computes in float8_e4m3fn inside" in notes["GV104"]
    assert "could hide" in notes["GV601"]


def test_nothing_is_inferred_for_them_and_nothing_is_a_bug_of_ours(place):
    here = place("eight_bits")
    (here.folder / "functions.gradverify.yaml").unlink()
    ran = here("check", "functions.py")
    assert ran.code == 1
    assert "bug" not in ran.out + ran.err

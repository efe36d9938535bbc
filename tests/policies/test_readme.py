"""The example in policies/README.md works as it stands there."""

from pathlib import Path

from tiercache.simulation.replay import Access, replay

README = Path(__file__).parents[2] / "policies" / "README.md"


def test_the_example_works():
    code = README.read_text().split("```python\n")[1].split("```")[0]
    scope: dict[str, type] = {}
    exec(code, scope)
    accesses = [Access(float(t), t, size) for t, size in enumerate((5, 3, 9, 1, 4))]
    counts = replay(scope["Largest"](15), accesses, 15)
    assert (counts.evictions, counts.bypasses) == (2, 0)
    assert replay(scope["Largest"](15, spare=9), accesses, 15).bypasses == 1

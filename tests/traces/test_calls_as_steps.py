"""Whether a step is a call of the model, as run.json tells."""

import pytest

from traceops.traces.run_manifest import ends_by_calls


@pytest.mark.parametrize(
    ("ends", "calls"),
    [
        ([{"LlamaForCausalLM.forward": 384}], True),
        ([{"Sequential.forward": 9}, {}], True),
        ([{"AdamW.step": 40}], False),
        ([{"Net.forward": 9}, {"AdamW.step": 9}], False),
        ([{}], False),
        ([None], False),
    ],
)
def test_steps_end_where_the_model_returns(ends, calls):
    assert ends_by_calls({"ranks": [{"step_ends": one} for one in ends]}) is calls
    assert not ends_by_calls({})

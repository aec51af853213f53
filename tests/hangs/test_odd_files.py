"""Files of the launcher with odd values in them: what makes sense is used, and nothing raises."""

import pytest
from generated_hang import Fault, Job, Step, dumps, run, write

from traceops.hangs.diagnose import diagnose

ODD = (
    '{"kind": "step", "stalled_s": 1e400, "ranks": 5}',
    '{"kind": "step", "stalled_s": 3, "limit_s": "x", "noticed_ns": "y", "notes": 5, "ranks": [{"rank": 1, "pid": [1], '
    '"state": {}, "step": "a", "exit_code": [1], "phase": 3, "heartbeat_age_s": "x"}]}',
    '{"kind": "step", "stalled_s": true, "notes": 5, "ranks": {"a": 1}}',
    '{"kind": ["step"], "stalled_s": 1}',
    '{"kind": "step", "stalled_s": NaN, "limit_s": NaN, "ranks": [{"rank": true, "exit_code": 1e10, "step": NaN}]}',
    '{"kind": "step", "stalled_s": 1, "noticed_ns": 1e999, "ranks": [{"rank": 2, "exit_code": 99999999999999999999}]}',
    '{"rank": 1, "groups": {"0": {"ranks": [1, "a"]}, "1": 5, "2": {"ranks": [true, -5]}}, "world_size": -3}',
    '{"rank": -1, "groups": {"0": {"ranks": [1, 2]}}, "world_size": 99999999999999}',
)


@pytest.mark.parametrize("text", ODD)
def test_odd_values_cost_themselves_only(tmp_path, text):
    fault = Fault("host", 2, 4)
    job = run(Job(3, [Step("world", (0, 1, 2))] * 6, {"world": (0, 1, 2)}, ahead=0), [fault])
    folder = write(tmp_path, dumps(job, [fault]))
    (folder / "hang.0.json").write_text(text)
    (folder / "groups_1.json").write_text(text)

    assert [(root.rule, root.ranks) for root in diagnose(folder).roots] == [("TO-H001", (2,))]


def test_a_manifest_with_odd_rows(tmp_path):
    fault = Fault("host", 2, 4)
    job = run(Job(3, [Step("world", (0, 1, 2))] * 6, {"world": (0, 1, 2)}, ahead=0), [fault])
    write(tmp_path / "evidence", dumps(job, [fault]))
    (tmp_path / "run.json").write_text(
        '{"ranks": [1, "a", {"rank": "x"}, {"rank": 1, "host": [1]}], "world_size": "q", "failed_rank": [1]}'
    )

    assert [(root.rule, root.ranks) for root in diagnose(tmp_path).roots] == [("TO-H001", (2,))]

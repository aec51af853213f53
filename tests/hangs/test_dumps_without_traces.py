"""`analyze` on dumps of the flight recorder, whatever their names: it says which command reads them."""

import json
import pickle

import pytest

from traceops.core.errors import InputError
from traceops.hangs.in_report import evidence_hint
from traceops.pipeline.analyze import find_traces

DUMP = {"version": "2.5", "pg_config": {}, "entries": [{"record_id": 0}]}


@pytest.mark.parametrize("name", ["_dump_9", "attempt_0/dump9", "dump_rank_0.json"])
def test_a_dump_is_known_by_what_is_in_it(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(json.dumps(DUMP).encode() if name.endswith("json") else pickle.dumps(DUMP, 2))
    for given in (tmp_path, path):
        with pytest.raises(InputError, match="dump of the flight recorder, though: traceops diagnose"):
            find_traces(str(given))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        pickle.dumps({"state": 1}, 2),
        b'{"distributedInfo": {"pg_config": [], "entries": 1}, "traceEvents": [',
        b'{"entries": [1]}',
    ],
)
def test_other_files_are_no_dumps(tmp_path, content):
    (tmp_path / "rank0.json").write_bytes(content)
    assert evidence_hint(str(tmp_path)) == ""

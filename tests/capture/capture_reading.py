import gzip
import json


def events(path, prefix):
    """Names of the events of a trace that begin with `prefix`, by start time."""
    with gzip.open(path) as handle:
        found = [e for e in json.load(handle)["traceEvents"] if e.get("name", "").startswith(prefix)]
    return sorted(found, key=lambda event: event["ts"])


def step_numbers(path):
    return [int(event["name"].split("#")[1]) for event in events(path, "ProfilerStep#")]


def run_json(out):
    return json.loads((out / "run.json").read_text())

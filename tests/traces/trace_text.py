"""Small traces as text, with the numbers written exactly as given."""


def event(name="k", cat="kernel", ts="1.5", dur="2.25", args='{"stream": 7, "correlation": 3}'):
    fields = f'"name": "{name}", "pid": 1, "tid": 2, "ts": {ts}, "dur": {dur}, "args": {args}'
    return f'{{"ph": "X", "cat": "{cat}", {fields}}}'


def document(events, separator=",\n  "):
    return f'{{"schemaVersion": 1, "traceEvents": [{separator.join(events)}], "traceName": "x"}}'

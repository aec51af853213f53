#!/bin/bash
# unpack.sh FROM TO: what run.sh packed into FROM, as TO/NAME/{sick,fixed}.pt.trace.json.gz, TO/truth.jsonl and TO/counters
set -eu
FROM=$(cd "$1" && pwd)
mkdir -p "$2"
cd "$2"
for tar in "$FROM"/pairs.*.tar; do
  for one in $(tar tf "$tar"); do tar xOf "$tar" "$one" | tar xJ --strip-components=1; done
done
find . -name '*.pt.trace.json' -print0 | xargs -0 -r -P 2 -n 1 gzip -f
tar xJf "$FROM/counters.tar.xz"
cp "$FROM/truth.jsonl" .

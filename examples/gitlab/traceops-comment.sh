#!/usr/bin/env bash
# traceops-comment.sh FILE [RUNS]: post FILE as a note on the merge request, or update the one of an earlier job.
#
# For after_script of a job in a merge request's pipeline. It needs curl, python3 and a project access token (role
# Reporter, scope api) in the CI/CD variable TRACEOPS_GITLAB_TOKEN, masked and not protected: a job's own token may
# not write notes. A note is found again by its first line, the marker that FILE begins with, and only among the
# notes of the token's own user. Where FILE is missing the note says so, for what it said is not of this commit, and
# quotes the training that failed in the folder RUNS (by reason.py, beside this script).
set -euo pipefail

file=${1:?which file to post}
if [ -z "${TRACEOPS_GITLAB_TOKEN:-}" ]; then
  echo "No note: TRACEOPS_GITLAB_TOKEN is not set. The comparison is in the job's artifacts."
  exit 0
fi
[ "${CI_JOB_STATUS:-}" != canceled ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -s "$file" ]; then
  cat "$file" > "$work/body"
else
  printf '<!-- traceops-compare -->\n**❌ Not measured: the job failed; its log says why.**\n\n' > "$work/body"
  [ -z "${2:-}" ] || python3 "$(dirname "$0")/reason.py" "$2" >> "$work/body" || true
fi
printf '\n<sub>Commit %s, in [this job](%s).</sub>\n' "${CI_COMMIT_SHORT_SHA:-}" "${CI_JOB_URL:-}" >> "$work/body"
IFS= read -r marker < "$work/body"

# ask ARGUMENTS: what the API answers. The token is no argument: those are seen by everybody on the machine.
ask() {
  printf 'header = "PRIVATE-TOKEN: %s"\n' "$TRACEOPS_GITLAB_TOKEN" |
    curl --config - --silent --show-error --fail --max-time 60 "$@"
}

notes=$CI_API_V4_URL/projects/$CI_MERGE_REQUEST_PROJECT_ID/merge_requests/$CI_MERGE_REQUEST_IID/notes
me=$(ask "$CI_API_V4_URL/user" | python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])')
own=
for ((page = 1; ; page++)); do
  ask "$notes?per_page=100&page=$page&sort=asc&order_by=created_at" > "$work/notes"
  own=$(python3 - "$work/notes" "$me" "$marker" <<'END'
import json, sys

with open(sys.argv[1], encoding="utf-8") as file:
    notes = json.load(file)
mine = (note for note in notes if str(note["author"]["id"]) == sys.argv[2])
found = (note["id"] for note in mine if note["body"].split("\n")[0].rstrip("\r") == sys.argv[3])
print(next(found, "" if notes else "none"))
END
  )
  [ -z "$own" ] || break
done

if [ "$own" = none ]; then
  ask --request POST --data-urlencode "body@$work/body" "$notes" > /dev/null
  echo "Posted a note on merge request $CI_MERGE_REQUEST_IID"
else
  ask --request PUT --data-urlencode "body@$work/body" "$notes/$own" > /dev/null
  echo "Updated note $own on merge request $CI_MERGE_REQUEST_IID"
fi

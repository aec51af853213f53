#!/usr/bin/env bash
# comment.sh FILE: post FILE as a comment on a pull request, or update the one that an earlier run posted.
#
# A comment is found again by its first line, the marker that FILE begins with, and only among the comments of the
# token's own user: nobody else's is touched. A token that may not write, as for pull requests from forks, is no
# failure: the comparison is in the job's summary as well.
#
# Environment: GH_TOKEN; GITHUB_REPOSITORY, owner/name; PULL_REQUEST, its number; NOTE, a last line, if any.
set -euo pipefail

file=${1:?which file to post}
repository=${GITHUB_REPOSITORY:?}
number=${PULL_REQUEST:?}
if [ -n "${GITHUB_SERVER_URL:-}" ]; then # GitHub Enterprise Server
  export GH_HOST="${GITHUB_SERVER_URL#https://}" GH_ENTERPRISE_TOKEN="${GH_TOKEN:-}"
fi

[ -f "$file" ] && [ ! -L "$file" ] || { echo "$file: no such file" >&2; exit 2; }
IFS= read -r marker < "$file" || true
[[ $marker =~ ^'<!-- traceops-compare'(:[A-Za-z0-9._-]+)?' -->'$ ]] || {
  echo "$file does not begin with the marker of traceops compare" >&2
  exit 2
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat "$file" > "$work/body"
[ -z "${NOTE:-}" ] || printf '\n<sub>%s</sub>\n' "$NOTE" >> "$work/body"

# ask ARGUMENTS: the answer of `gh api`. Ends the script where the token may not do it, or it failed.
ask() {
  gh api "$@" > "$work/answer" 2> "$work/error" && return
  if grep -q 'not accessible by' "$work/answer" "$work/error"; then
    printf '::notice title=traceops compare::%s\n' \
      "No comment: this token may not write to pull requests, as for one from a fork (else the job lacks" \
      "permissions: pull-requests: write). The comparison is in the job's summary." | paste -s -d ' ' -
    exit 0
  fi
  cat "$work/error" >&2
  exit 1
}

# shellcheck disable=SC2016 # $owner and the like are GraphQL's
ask graphql --paginate -f owner="${repository%%/*}" -f name="${repository#*/}" -F number="$number" \
  -f query='query($owner: String!, $name: String!, $number: Int!, $endCursor: String) {
    repository(owner: $owner, name: $name) { pullRequest(number: $number) {
      comments(first: 100, after: $endCursor) {
        nodes { id viewerDidAuthor body } pageInfo { hasNextPage endCursor } } } } }' \
  --jq '.data.repository.pullRequest.comments.nodes[] | select(.viewerDidAuthor)
    | [.id, (.body | split("\n")[0] // "" | rtrimstr("\r"))] | @tsv'

own=
while IFS=$'\t' read -r id first; do
  if [ "$first" = "$marker" ]; then
    own=$id
    break
  fi
done < "$work/answer"

if [ -n "$own" ]; then
  # shellcheck disable=SC2016
  ask graphql -f id="$own" -F body=@"$work/body" --jq '.data.updateIssueComment.issueComment.url' \
    -f query='mutation($id: ID!, $body: String!) {
      updateIssueComment(input: {id: $id, body: $body}) { issueComment { url } } }'
  printf 'Updated %s\n' "$(cat "$work/answer")"
else
  ask --method POST "repos/$repository/issues/$number/comments" -F body=@"$work/body" --jq .html_url
  printf 'Posted %s\n' "$(cat "$work/answer")"
fi

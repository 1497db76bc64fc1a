#!/usr/bin/env bash
# The branch as it is on its remote, before a nightly run. A tree with edits, or with no remote branch, is left as it is: the flow says what is edited.
set -euo pipefail
unset PREFECT_API_AUTH_STRING  # git may run hooks
if ! upstream=$(git rev-parse --abbrev-ref '@{upstream}' 2>/dev/null); then
  echo "this branch follows no remote one: nothing to fetch"
elif [ -n "$(git status --porcelain --untracked-files=no)" ]; then
  echo "the tree has edits, so $upstream is not merged"
else
  git pull --quiet --ff-only
  echo "at $(git rev-parse --short HEAD), as $upstream"
fi

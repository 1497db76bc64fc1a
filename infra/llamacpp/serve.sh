#!/usr/bin/env bash
# Serve a GGUF file to clients of OpenAI's API: infra/llamacpp/serve.sh FILE PORT [more flags of llama-server]. Its name there is the file's.
set -euo pipefail
file=$1 port=$2
shift 2
name=$(basename "$file" .gguf)
# The chat template is the file's. What is drawn is drawn from the model's whole distribution, as it was judged, unless a request says otherwise. Thoughts
# stay in the text, so that clients send them back, and the next turn has the prompt that was learnt.
exec "$(cd "$(dirname "$0")" && pwd)/build/bin/llama-server" --model "$file" --alias "$name" --host "${HOST:-127.0.0.1}" --port "$port" --offline --jinja \
  --top-k 0 --top-p 1 --min-p 0 --reasoning-format none "$@"

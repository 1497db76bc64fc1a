#!/usr/bin/env bash
# Serve a model's folder for rollouts: infra/vllm/serve.sh FOLDER PORT [more flags of vLLM].
# Its flags are part of the contract of posttrain/rollout/engines/vllm_server.py: token ids in and out, log-probabilities of the distribution sampled
# from, weights that can be replaced. The development endpoints answer without a key: HOST is loopback unless it is set.
set -euo pipefail
folder=$1 port=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
export VLLM_SERVER_DEV_MODE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1} VLLM_ALLOW_RUNTIME_LORA_UPDATING=True
length=${MAX_MODEL_LEN:-1024} seqs=${MAX_NUM_SEQS:-128}
export PYTHONPATH=$here/../..  # of posttrain the worker's extension alone is imported
flags=(--worker-extension-cls posttrain.rollout.engines.weight_stream.WeightReceiver --dtype "${DTYPE:-float32}" --generation-config vllm --logprobs-mode processed_logprobs --enable-scale-out
  --disable-uvicorn-access-log --max-model-len "$length" --max-num-seqs "$seqs")
if [[ ${DEVICE:-$(command -v nvidia-smi >/dev/null && echo cuda || echo cpu)} == cpu ]]; then
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} VLLM_CPU_OMP_THREADS_BIND=nobind  # else every server takes the first core
  # The model runs in the scheduler's process: apart, as vLLM has it by default, the two wait for each other in a loop that takes whole cores.
  export VLLM_ENABLE_V1_MULTIPROCESSING=0
  # Else the first message waits for a C++ compiler to make one small function, and fails where there is none.
  export TORCHDYNAMO_DISABLE=1
  # A seeded request whose prompt is read in pieces ends vLLM's CPU engine: the pieces are larger than any prompt.
  # A turn finds what the turn before it left in the cache as far as it fills blocks: small ones, because turns are.
  flags+=(--enforce-eager --distributed-executor-backend uni --max-num-batched-tokens $((length * seqs)) --block-size 32
    --kv-cache-memory-bytes "${KV_BYTES:-268435456}")
fi
if [[ ${POSTTRAIN_VLLM_COLOCATED:-} == 1 ]]; then  # on the trainer's GPU, of which it takes a part while it is awake
  flags+=(--enable-sleep-mode --gpu-memory-utilization "${GPU_FRACTION:-0.45}")
fi
if [[ -n ${LORA_RANK:-} ]]; then
  flags+=(--enable-lora --max-lora-rank "$LORA_RANK" --lora-target-modules q_proj k_proj v_proj o_proj gate_proj up_proj down_proj)
fi
# Not exec: vLLM leaves its sockets in the temporary folder however it ends, so it has one of its own, which goes with it.
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
"$here/.venv/bin/python" -m vllm.entrypoints.openai.api_server --host "${HOST:-127.0.0.1}" --port "$port" --model "$folder" \
  --served-model-name base "${flags[@]}" "$@" &
server=$!
trap 'kill "$server" 2>/dev/null' INT TERM HUP
status=0
while kill -0 "$server" 2>/dev/null; do wait "$server" && status=0 || status=$?; done  # a signal ends the first wait, not the server
exit "$status"

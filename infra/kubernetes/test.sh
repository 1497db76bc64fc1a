#!/usr/bin/env bash
# The suite against the cluster that KUBECONFIG names. It makes a namespace of its own, with the rights of rbac.yaml, and deletes both.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -z "${KUBECONFIG:-}" ]; then
  cat >&2 <<'HOW'
KUBECONFIG names no cluster. The suite's pods run this machine's Python, so a node has to see its folders, and to offer two nvidia.com/gpu:
  kind:   printf 'kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- {role: control-plane, extraMounts: [{hostPath: /, containerPath: /host}]}\n' |
            kind create cluster --config -
  k3d:    k3d cluster create --volume /:/host
  then:   kubectl patch node NODE --subresource=status --type=json \
            -p '[{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "2"}]'      # the names of two GPUs, without any
          KUBECONFIG=~/.kube/config KUBERNETES_TEST_ROOT=/host KUBERNETES_TEST_IMAGE=busybox:1 make test NEEDS=k8s
HOW
  exit 2
fi
exec pytest -m needs_k8s tests/real/test_kubernetes*.py

#!/usr/bin/env bash
# Make infra/llamacpp/build: llama.cpp's server, its quantiser and its converter of Hugging Face folders. Takes CMake, a C++ compiler and ten minutes on
# two cores. With an NVIDIA GPU and nvcc it is built for CUDA; CMAKE_ARGS are more of CMake's.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-../../.venv/bin/python}
for program in cmake c++; do
  command -v $program >/dev/null || { echo "llama.cpp is compiled with CMake and a C++ compiler: $program is not installed" >&2; exit 1; }
done
pip() { "$python" -m pip "$@" --quiet --disable-pip-version-check --no-deps; }
version() { grep "^$1==" requirements.lock; }
rm -rf build
mkdir -p build/package build/source
pip download --no-binary llama-cpp-python --dest build/package "$(version llama-cpp-python)"
tar --extract --gzip --file build/package/*.tar.gz --directory build/package
mv build/package/*/vendor/llama.cpp build/package/llama.cpp
pip install --target build/packages "$(version sentencepiece)"
arguments=(-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF
  -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF)
if command -v nvidia-smi >/dev/null && command -v nvcc >/dev/null; then arguments+=(-DGGML_CUDA=ON); fi
# shellcheck disable=SC2086  # several arguments
cmake -S build/package/llama.cpp -B build/package/cmake "${arguments[@]}" ${CMAKE_ARGS:-} >build/log
cmake --build build/package/cmake --target llama-server llama-quantize --parallel "$(getconf _NPROCESSORS_ONLN)" >>build/log
mv build/package/cmake/bin build/bin
mv build/package/llama.cpp/{convert_hf_to_gguf.py,conversion,gguf-py,LICENSE} build/source
rm -rf build/package
touch build/.installed

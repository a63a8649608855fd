# Shared by the scripts beside it; sourced, not run. Leaves the shell in the repository's root.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Installers put nvcc here without adding it to PATH.
if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
  PATH=$PATH:/usr/local/cuda/bin
fi

has_nvcc() { command -v nvcc >/dev/null; }
has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; }

# The preset that tests the most on this machine.
best_preset() { if has_nvcc; then echo sm90; else echo cpu; fi; }

# build PRESET [TARGET...]: configures and builds. A warning of a compiler that we have not seen yet stops
# .ci/run, which sets SNAPMLA_WERROR=ON, and nobody else.
build() {
  local preset=$1
  shift
  local log
  log=$(mktemp)
  # Configuring is only interesting when it fails.
  if ! cmake --preset "$preset" -DSNAPMLA_WARNINGS_AS_ERRORS="${SNAPMLA_WERROR:-OFF}" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
  grep -E 'CUDA backend' "$log" || true
  rm -f "$log"
  local targets=()
  if (($#)); then targets=(--target "$@"); fi
  cmake --build --preset "$preset" "${targets[@]}"
}

#!/bin/bash
# Checks that need a GPU: the CUDA backend's conformance, training on the GPU (under compute-sanitizer if it is
# installed), the time of a step (beside PyTorch if it is installed), and how much of the exchange with a server
# overlaps with the step. Runs in a bundle (`./dev bundle --gpu`) on a machine without any other part of Weir, or in a
# build tree.
#
#   tools/gpu_check.sh [--device=cuda:N] [--json=FILE] [--seconds=S]
#
# Exit codes: 0 all checks passed; 1 a check failed; 64 bad command line; 77 skipped, because there is no usable GPU.
set -uo pipefail

device=cuda:0 json=gpu_check.json seconds=2
for arg in "$@"; do
  case $arg in
    --device=cuda:*) device=${arg#*=} ;;
    --json=?*) json=${arg#*=} ;;
    --seconds=?*) seconds=${arg#*=} ;;
    *)
      echo "gpu-check: '$arg' is not known; there are --device=cuda:N, --json=FILE and --seconds=S" >&2
      exit 64
      ;;
  esac
done

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$tools")
# The path of program $1, in the bundle or in folder $2 of the build tree.
program() {
  local path
  for path in "$root/bin/$1" "$root/bazel-bin/$2/$1"; do
    [[ -x $path ]] && echo "$path" && return
  done
  echo "gpu-check: there is no program $1 in $root/bin or $root/bazel-bin/$2" >&2
  return 1
}
weir=$(program weir cli) && worker=$(program worker worker) && step_bench=$(program step_bench tests/worker/bench) &&
  exchange_bench=$(program exchange_bench tests/worker/bench) &&
  conformance=$(program compute_backend_test tests/worker/compute) || exit 1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$weir" doctor || exit 1
"$weir" doctor --json >"$work/host.json" || exit 1
"$step_bench" --device="$device" --precisions=float32 --width=8 --batch=8 --seconds=0 >/dev/null 2>"$work/why"
case $? in
  0) ;;
  78)
    echo "SKIPPED: gpu-check needs a GPU: $(sed -n 's/^error: //p' "$work/why")"
    exit 77
    ;;
  *)
    cat "$work/why" >&2
    exit 1
    ;;
esac

rows=() checks=() skips=() failed=0
quoted() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  echo "\"${text//[$'\n\t']/ }\""
}
# $1 name, $2 0 if the check passed, $3 what was seen
check() {
  local ok=true word=passed
  if [[ $2 -ne 0 ]]; then ok=false word=FAILED failed=1; fi
  rows+=("$1|$word|$3")
  checks+=("{\"name\": $(quoted "$1"), \"passed\": $ok, \"seen\": $(quoted "$3")}")
}

skip() { # $1 what and why
  echo "SKIPPED: $1"
  skips+=("$(quoted "$1")")
}

# The GPU's cases skip themselves if the GPU cannot be used, which is a failure here.
"$conformance" >"$work/conformance" 2>&1
rc=$?
[[ $rc -eq 0 ]] && ! grep -q '^SKIPPED:' "$work/conformance" || rc=1
[[ $rc -eq 0 ]] || cat "$work/conformance"
check conformance $rc "$(grep -E '^(SKIPPED|All tests|test cases)' "$work/conformance" | tail -1)"

# A field of the last job's summary.
summary() { sed -n "s/^ *\"$1\": *\"\{0,1\}\([^\",]*\).*/\1/p" "$work/summary.json" | head -1; }
# Trains in one process: $1 config, $2 devices, $3 precision, further arguments. Sets accuracy and hash.
run_job() {
  local config=$1 devices=$2 precision=$3
  shift 3
  rm -f "$work/summary.json"
  accuracy='' hash=''
  "$worker" --config="$root/configs/$config.json" --device="$devices" --set "compute.precision=$precision" \
    --set 'consistency={"mode": "sync"}' "$@" --summary="$work/summary.json" >"$work/log" 2>&1 || {
    tail -5 "$work/log"
    return 1
  }
  accuracy=$(summary test_accuracy) hash=$(summary weights_sha256)
  [[ -n $accuracy && -n $hash ]]
}
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'; }

on_cpu() { # $1 name, $2 config, further arguments
  run_job "$2" cpu float32 "${@:3}"
  check "$1 on the CPU" $? "accuracy $accuracy"
  cpu_accuracy=${accuracy:-1}
}
train() { # $1 name, $2 config, $3 devices, $4 precision, further arguments: as good as on the CPU, and the same bits again
  run_job "${@:2}"
  local rc=$? first=$hash seen="accuracy $accuracy"
  # Rounding may change the result of one or two of the 297 test images of digits, and of a hundred of Fashion-MNIST's
  # 10,000.
  if [[ $rc -eq 0 ]] && less "$accuracy" "$(awk -v a="$cpu_accuracy" 'BEGIN { print a - 0.01 }')"; then
    rc=1 seen+=", the CPU's is $cpu_accuracy"
  fi
  check "$1 on $3 in $4" $rc "$seen"
  run_job "${@:2}" && [[ $hash == "$first" ]]
  check "$1 on $3 in $4, again" $? "weights_sha256 ${hash:0:12}, before ${first:0:12}"
}
on_cpu digits digits
for precision in float32 tf32 bf16; do train digits digits "$device" $precision; done
train digits digits "$device,$device" float32

fashion=''
for folder in "$root/datasets/fashion-mnist" /usr/share/datasets/fashion-mnist; do
  [[ -z $fashion && -e $folder/train-images-idx3-ubyte.gz ]] && fashion=$folder
done
if [[ -n $fashion ]]; then
  files() { echo "data.$1={\"images\": \"$fashion/$2-images-idx3-ubyte.gz\", \"labels\": \"$fashion/$2-labels-idx1-ubyte.gz\"}"; }
  short=(--set "$(files train train)" --set "$(files test t10k)" --set 'train={"epochs": 2}')
  on_cpu Fashion-MNIST fashion_mlp "${short[@]}"
  train Fashion-MNIST fashion_mlp "$device" float32 "${short[@]}"
else
  skip 'no training on Fashion-MNIST: its files are neither in the bundle nor in /usr/share/datasets/fashion-mnist'
fi

# Trains a few steps with every kind of layer.
layers='model.layers=[{"type": "conv2d", "filters": 5, "kernel": 3, "padding": 1}, {"type": "relu"}, {"type": "max_pool", "kernel": 2},
  {"type": "conv2d", "filters": 3, "kernel": 2}, {"type": "tanh"}, {"type": "flatten"}, {"type": "dense", "units": 33},
  {"type": "gelu"}, {"type": "dropout", "rate": 0.3}, {"type": "dense", "units": 10}]'
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 99 "$worker" --config="$root/configs/digits.json" --device="$device" \
      --set "$layers" --set 'train={"examples": 41}' >"$work/log" 2>&1
    rc=$?
    [[ $rc -eq 0 ]] || tail -20 "$work/log"
    check "compute-sanitizer, $tool" $rc "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$work/log" | tail -1)"
  done
else
  skip 'no compute-sanitizer on the PATH'
fi

"$step_bench" --device="$device" --seconds="$seconds" >"$work/steps"
check 'step benchmark' $? "MLP 784-4096-4096-10, batch 1024"
if python3 -c 'import torch' 2>/dev/null; then
  torch_step=$tools/torch_step.py
  [[ -f $torch_step ]] || torch_step=$root/tests/worker/bench/torch_step.py
  python3 "$torch_step" --device="$device" --seconds="$seconds" >>"$work/steps"
  check 'step benchmark of PyTorch' $? "beside it"
else
  skip "no comparison with PyTorch: python3 -c 'import torch' fails"
fi
: >"$work/exchange"
for precision in float32 tf32 bf16; do
  "$exchange_bench" --device="$device" --precision=$precision --seconds="$seconds" >>"$work/exchange"
  check "exchange benchmark in $precision" $? 'the same MLP, one server on this host'
done

echo
printf '%s\n' "${rows[@]}" | awk -F'|' '{ printf "%-34s %-8s %s\n", $1, $2, $3 }'
echo
field() { # $1 of the JSON object $2
  [[ $2 =~ \"$1\":\ *\"?([^\",}]*) ]] && echo "${BASH_REMATCH[1]}"
}
printf '%-20s %-8s %-10s %s\n' program way precision 'ms a step'
while read -r line; do
  printf '%-20s %-8s %-10s %s\n' "$(field program "$line")" "$(field way "$line")" "$(field precision "$line")" \
    "$(field ms "$line")"
done <"$work/steps"
echo
printf '%-10s %-10s %-10s %-12s %s\n' exchange precision 'ms' 'ms if hidden' ratio
while read -r line; do
  printf '%-10s %-10s %-10s %-12s %s\n' "$(field way "$line")" "$(field precision "$line")" "$(field ms "$line")" \
    "$(field hidden_ms "$line")" "$(field ratio "$line")"
done <"$work/exchange"

joined() { local IFS=,; echo "$*"; }
printf '{"host": %s,\n"checks": [%s],\n"skipped": [%s],\n"steps": [%s],\n"exchange": [%s]}\n' "$(<"$work/host.json")" \
  "$(joined "${checks[@]}")" "$(joined "${skips[@]}")" "$(paste -sd, "$work/steps")" "$(paste -sd, "$work/exchange")" \
  >"$json" || failed=1
echo
echo "$json"
exit $failed

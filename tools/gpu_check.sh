#!/bin/bash
# What only a GPU can show: the CUDA backend's conformance, training on it, and how long a step takes, beside PyTorch where it
# is installed. Runs in a bundle (`./dev bundle --gpu`) on a machine where nothing else of Weir is, or in a build tree.
#
#   tools/gpu_check.sh [--device=cuda:N] [--json=FILE] [--seconds=S]
#
# Exit codes: 0 all checks passed; 1 one failed; 64 bad command line; 77 skipped, for there is no GPU to use.
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
# A program: of the bundle, or of the build tree's folder $2.
program() {
  local path
  for path in "$root/bin/$1" "$root/bazel-bin/$2/$1"; do
    [[ -x $path ]] && echo "$path" && return
  done
  echo "gpu-check: there is no program $1 in $root/bin or $root/bazel-bin/$2" >&2
  return 1
}
weir=$(program weir cli) && worker=$(program worker worker) && step_bench=$(program step_bench worker) &&
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

rows=() checks=() failed=0
quoted() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  echo "\"${text//[$'\n\t']/ }\""
}
# $1 name, $2 0 or else, $3 what was seen
check() {
  local ok=true word=passed
  if [[ $2 -ne 0 ]]; then ok=false word=FAILED failed=1; fi
  rows+=("$1|$word|$3")
  checks+=("{\"name\": $(quoted "$1"), \"passed\": $ok, \"seen\": $(quoted "$3")}")
}

# Cases on the GPU skip themselves where it cannot be used, which here is a failure.
"$conformance" >"$work/conformance" 2>&1
rc=$?
[[ $rc -eq 0 ]] && ! grep -q '^SKIPPED:' "$work/conformance" || rc=1
[[ $rc -eq 0 ]] || cat "$work/conformance"
check conformance $rc "$(grep -E '^(SKIPPED|All tests|test cases)' "$work/conformance" | tail -1)"

# A field of the last job's summary.
summary() { sed -n "s/^ *\"$1\": *\"\{0,1\}\([^\",]*\).*/\1/p" "$work/summary.json" | head -1; }
# Trains digits in this process alone: $1 devices, $2 precision. Sets accuracy and hash.
digits() {
  rm -f "$work/summary.json"
  accuracy='' hash=''
  "$worker" --config="$root/configs/digits.json" --device="$1" --set "compute.precision=$2" \
    --set 'consistency={"mode": "sync"}' --summary="$work/summary.json" >"$work/log" 2>&1 || {
    tail -5 "$work/log"
    return 1
  }
  accuracy=$(summary test_accuracy) hash=$(summary weights_sha256)
  [[ -n $accuracy && -n $hash ]]
}
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'; }

digits cpu float32
check 'digits on the CPU' $? "accuracy $accuracy"
on_cpu=${accuracy:-1}
train() { # $1 devices, $2 precision: as good as on the CPU, and the same bits again
  digits "$1" "$2"
  local rc=$? first=$hash seen="accuracy $accuracy"
  # 297 test images: one or two may fall to the other side.
  if [[ $rc -eq 0 ]] && less "$accuracy" "$(awk -v a="$on_cpu" 'BEGIN { print a - 0.01 }')"; then
    rc=1 seen+=", the CPU's is $on_cpu"
  fi
  check "digits on $1 in $2" $rc "$seen"
  digits "$1" "$2" && [[ $hash == "$first" ]]
  check "digits on $1 in $2, again" $? "weights_sha256 ${hash:0:12}, before ${first:0:12}"
}
for precision in float32 tf32 bf16; do train "$device" $precision; done
train "$device,$device" float32

"$step_bench" --device="$device" --seconds="$seconds" >"$work/steps"
check 'step benchmark' $? "MLP 784-4096-4096-10, batch 1024"
if python3 -c 'import torch' 2>/dev/null; then
  python3 "$tools/torch_step.py" --device="$device" --seconds="$seconds" >>"$work/steps"
  check 'step benchmark of PyTorch' $? "beside it"
else
  echo "SKIPPED: no comparison with PyTorch: python3 -c 'import torch' fails"
fi

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

joined() { local IFS=,; echo "$*"; }
printf '{"host": %s,\n"checks": [%s],\n"steps": [%s]}\n' "$(<"$work/host.json")" "$(joined "${checks[@]}")" \
  "$(paste -sd, "$work/steps")" >"$json" || failed=1
echo
echo "$json"
exit $failed

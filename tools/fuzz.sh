#!/bin/bash
# Runs fuzz targets that were built with libFuzzer, one after another, and prints what each has done.
#
#   tools/fuzz.sh FOLDER [TARGET...] [--minutes=M]
#
# FOLDER has the programs, TARGET_fuzz. Without TARGET: all of them, each for M minutes (15). What libFuzzer has found
# worth keeping stays in .fuzz/TARGET/corpus for the next run, and inputs that were handled wrongly in
# .fuzz/TARGET/found. Ends with 1 if there are any.
set -euo pipefail

folder=$1
shift
minutes=15
targets=()
for argument in "$@"; do
  case $argument in
    --minutes=*) minutes=${argument#*=} ;;
    *) targets+=("$argument") ;;
  esac
done
[[ $minutes =~ ^[1-9][0-9]{0,4}$ ]] || { echo "fuzz: --minutes must be 1 to 99999, got '$minutes'" >&2; exit 64; }
known=()
for program in "$folder"/*_fuzz; do known+=("$(basename "$program" _fuzz)"); done
[[ ${#targets[@]} -gt 0 ]] || targets=("${known[@]}")
for target in "${targets[@]}"; do
  [[ -x $folder/${target}_fuzz ]] || { echo "fuzz: no target '$target'; there are ${known[*]}" >&2; exit 64; }
done

failed=0
for target in "${targets[@]}"; do
  program=$folder/${target}_fuzz
  work=.fuzz/$target
  mkdir -p "$work/corpus" "$work/seeds" "$work/found"
  "$program" --write_seeds="$work/seeds"
  inputs=("$work/corpus" "$work/seeds")
  [[ ! -d tests/fuzz/corpus/$target ]] || inputs+=("tests/fuzz/corpus/$target")
  rc=0
  # Entropic scheduling costs more than an exchange does. An input may take 20 s and 512 MB at once.
  UBSAN_OPTIONS=print_stacktrace=1 "$program" "${inputs[@]}" -dict="$work/seeds.dict" -entropic=0 \
    -max_total_time=$((minutes * 60)) -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=512 \
    -artifact_prefix="$work/found/" -print_final_stats=1 >"$work/log" 2>&1 || rc=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
  edges=$(sed -n 's/.*cov: \([0-9]*\) .*/\1/p' "$work/log" | tail -1)
  echo "$target: ${runs:-0} executions, ${edges:-0} edges in $minutes min"
  if [[ $rc -ne 0 ]]; then
    failed=1
    input=$(sed -n 's/.*Test unit written to //p' "$work/log" | tail -1)
    echo "FOUND: $target, see $work/log. Repeat it with: $program ${input:-"${inputs[*]}"}"
    echo "  Make it a test: copy the input to tests/fuzz/corpus/$target, and mend the reader."
  fi
done
exit "$failed"

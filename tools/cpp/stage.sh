#!/bin/bash
# Lays out what a C++ program needs to build and run with client/client.h, outside of Bazel: STAGE/cpp, for CMake and pkg-config.
#
#   tools/cpp/stage.sh STAGE LIBRARY
#
# LIBRARY: libweir_client.so as Bazel has built it. The libraries that it needs go into STAGE/lib, where the programs of a bundle
# have theirs; prints their places on this machine. STAGE/cpp/lib has links to them, but not the C++ runtime: a program brings the
# one of its own compiler, which may be newer.
set -euo pipefail

stage=$1 library=$2
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
# shellcheck source=tools/libraries.sh
source "$root/tools/libraries.sh"
cpp=$stage/cpp
mkdir -p "$cpp/include" "$cpp/lib/pkgconfig" "$cpp/lib/cmake/Weir" "$stage/lib" "$stage/examples/cpp"

install -m 644 "$library" "$cpp/lib/libweir_client.so"
strip --strip-unneeded "$cpp/lib/libweir_client.so"
copy_libraries "$library" "$stage/lib"
needed_libraries "$library" | while read -r name _; do
  [[ $name =~ ^lib(stdc\+\+|gcc_s)\. ]] || ln -s "../../lib/$name" "$cpp/lib/$name"
done

# The public headers, and all headers of Weir and Abseil that they include, by their whole paths: so not from the working folder.
printf '#include "%s"\n' client/client.h client/task.h common/base/status_macros.h common/program/exit_codes.h |
  (cd / && g++ -std=c++17 -I"$root" -M -x c++ -) | tr ' ' '\n' | while read -r header; do
  case $header in
    "$root"/*) install -D -m 644 "$header" "$cpp/include/${header#"$root"/}" ;;
    /usr/include/absl/*) install -D -m 644 "$header" "$cpp/include/${header#/usr/include/}" ;;
  esac
done

absl=$(cd "$cpp/lib" && printf ' -l:%s' libabsl_*)
for file in WeirConfig.cmake WeirConfigVersion.cmake weir.pc; do
  to=$cpp/lib/cmake/Weir
  [[ $file != weir.pc ]] || to=$cpp/lib/pkgconfig
  sed -e "s/@VERSION@/$(<"$root/VERSION")/" -e "s/@ABSL@/$absl/" "$root/tools/cpp/$file" >"$to/$file"
done
install -m 644 -t "$stage/examples/cpp" "$root"/examples/cpp/*

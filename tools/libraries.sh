# Functions for scripts that pack programs: which libraries come along.
# shellcheck shell=bash

# Parts of glibc, which must be the target's own; and the GPU driver's library, which belongs to the target's kernel
# module.
readonly NOT_BUNDLED='^(ld-linux-x86-64|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libcuda)\.so'

# Prints "NAME PATH" for each library that the binary needs, directly or not, but for NOT_BUNDLED.
needed_libraries() {
  # "name => path (address)"
  ldd "$1" | while read -r name arrow path _; do
    [[ $arrow == '=>' && ! $name =~ $NOT_BUNDLED ]] || continue
    [[ $path == /* ]] || { echo "bundle: $1 needs $name, which is not found" >&2; exit 1; }
    echo "$name $path"
  done
}

# Copies them into the folder $2, and prints their paths.
copy_libraries() {
  local name path
  needed_libraries "$1" | while read -r name path; do
    cp -Lu "$path" "$2/$name"
    echo "$path"
  done
}

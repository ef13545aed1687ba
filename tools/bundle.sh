#!/bin/bash
# Packs the programs that `./dev bundle` built and every library that they need except glibc's. RPATH ($ORIGIN/../lib)
# finds the libraries. Then starts each program, and trains, in a root that contains only the bundle and glibc.
#
#   tools/bundle.sh [--gpu] PACKAGE...
#
# PACKAGE: the Debian packages that the programs were built with. The bundle's bill of materials lists them beside those that
# its libraries are of.
# SOURCE_DATE_EPOCH: the time that the archive's files get, in seconds since 1970.
# --gpu: for machines with a GPU. Adds cuBLAS (600 MB), which the programs load to compute on a GPU, and the files
# that tools/gpu_check.sh needs, with Fashion-MNIST if it is installed here.
set -euo pipefail

bundle=weir-linux-x86_64
programs=(cli/weir bench/weir_bench ps_server/ps_server worker/worker)
cublas=()
case ${1:-} in
  --gpu)
    shift
    bundle+=-gpu
    programs+=(tests/worker/bench/step_bench tests/worker/bench/exchange_bench tests/worker/compute/compute_backend_test)
    cuda=$(dirname "$(dirname "$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")")")
    for library in libcublas.so.13 libcublasLt.so.13; do
      [[ -e $cuda/lib64/$library ]] || { echo "bundle: --gpu needs $library, which is not in $cuda/lib64" >&2; exit 1; }
      cublas+=("$cuda/lib64/$library")
    done
    ;;
  -*)
    echo "bundle: '$1' is not known; there is --gpu" >&2
    exit 64
    ;;
esac
readonly bundle programs cublas packages=("$@")
# shellcheck source=tools/libraries.sh
source tools/libraries.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/$bundle
mkdir -p "$stage/bin" "$stage/lib"

for program in "${programs[@]}"; do
  install -m 755 "bazel-bin/$program" "$stage/bin/"
  strip --strip-debug "$stage/bin/$(basename "$program")"
  copy_libraries "bazel-bin/$program" "$stage/lib" >>"$work/libraries"
done
tools/cpp/stage.sh "$stage" bazel-bin/client/libweir_client.so >>"$work/libraries"
# Where the pages' links have it.
ln -s cpp/include/client "$stage/client"
cp -r configs docs "$stage/"
install -D -m 644 -t "$stage/examples" examples/*.py examples/*.json examples/*.txt
# README.md, and what it refers to.
cp --parents LICENSE README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md proto/job_config.proto worker/data/digits/LICENSE "$stage/"
if [[ ${#cublas[@]} -gt 0 ]]; then
  cp -L "${cublas[@]}" "$stage/lib/"
  install -D -m 755 -t "$stage/tools" tools/gpu_check.sh tests/worker/bench/torch_step.py
  # Without the data set, gpu_check.sh reports that it skips this part.
  fashion=/usr/share/datasets/fashion-mnist
  [[ ! -d $fashion ]] || install -D -m 644 -t "$stage/datasets/fashion-mnist" "$fashion"/*.gz
fi

# The README's links lead to files of the bundle.
grep -oE '\]\([^)#]+' README.md | sed 's/^](//' | grep -v '^https\?:' | sort -u | while read -r link; do
  [[ -e $stage/$link ]] || { echo "bundle: README.md refers to $link, which the bundle does not contain" >&2; exit 1; }
done

mapfile -t libraries < <(sort -u "$work/libraries")
/usr/bin/python3 tools/sbom.py --name="$bundle" --version="$(<VERSION)" \
  "${packages[@]/#/--built-with=}" "${libraries[@]}" "${cublas[@]}" >"$stage/$bundle.spdx.json"

# A root that contains only parts of glibc.
root=$work/root
mkdir -p "$root/lib64" "$root/lib/x86_64-linux-gnu" "$root/weir" "$root/proc" "$root/dev" "$root/tmp"
cp -r "$stage/." "$root/weir/"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
for name in libc libm libmvec libpthread libdl librt libresolv; do
  cp -L /lib/x86_64-linux-gnu/$name.so.* "$root/lib/x86_64-linux-gnu/" 2>/dev/null || true
done
# Runs a program in that root, with /proc (where the loader finds $ORIGIN) and /dev mounted until the program ends.
run_alone() {
  # shellcheck disable=SC2016
  unshare --mount sh -c 'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec env -i LD_BIND_NOW=1 /usr/sbin/chroot "$0" "$@"' \
    "$root" "$@" >"$work/output" 2>&1 || {
    echo "bundle: '$*' fails where there is nothing but the bundle and glibc:" >&2
    cat "$work/output" >&2
    exit 1
  }
}
for program in "${programs[@]}"; do run_alone "/weir/bin/${program##*/}" --help; done
run_alone /weir/bin/weir up --ps=2 --workers=4 /weir/configs/digits.json
grep 'test accuracy' "$work/output"

mkdir -p dist
# The same files make the same archive.
tar -C "$work" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" --format=gnu --sort=name \
  -cf - "$bundle" | gzip -n >"dist/$bundle.tar.gz"
cp "$stage/$bundle.spdx.json" dist/
if [[ -n ${SUDO_UID:-} ]]; then chown "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" dist "dist/$bundle".*; fi
echo "dist/$bundle.tar.gz: $(du -h "dist/$bundle.tar.gz" | cut -f1), $(find "$stage/lib" -type f | wc -l) libraries"

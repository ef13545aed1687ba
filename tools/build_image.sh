#!/bin/bash
# Builds an image of deploy/docker/Dockerfile without docker and without a registry, from the bundle or the wheel in dist/: with
# buildah, on a base that mmdebstrap makes from the Debian mirror of this machine's apt. Needs root.
#
#   tools/build_image.sh DIR [cpu|python] [OCI]
#
# OCI: a folder that gets the image as an OCI layout, whose files have the time SOURCE_DATE_EPOCH: the same bytes for the same bundle
# and packages.
# python: the image that deploy/compose makes of this target. The base has Debian's PyTorch, so that pip need not fetch one.
#
# DIR, which must not exist, then has root (the image's files), image.json (what buildah knows of it) and storage (of buildah).
set -euo pipefail

out=$1 target=${2:-cpu} oci=${3:-}
mkdir "$out"
storage() {
  buildah --storage-driver vfs --root "$out/storage" --runroot "$out/storage-run" "$@"
}

# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Codename: bookworm' 'Origin: Debian' | head -1)
[[ -n $mirror ]] || { echo "build_image: apt has no mirror of Debian bookworm: see /etc/apt" >&2; exit 1; }
include=()
[[ $target != python ]] || include=("--include=python3-venv,python3-numpy,python3-torch")
mmdebstrap --quiet --variant=minbase "${include[@]}" bookworm "$out/base.tar" "$mirror"
base=$(storage from scratch)
storage add --quiet "$base" "$out/base.tar" /
# Python would not believe its compiled files if all had one time.
stamp=()
[[ -z $oci ]] || stamp=(--timestamp "$SOURCE_DATE_EPOCH")
storage commit --quiet "${stamp[@]}" "$base" localhost/base:bookworm
build() {
  storage bud --quiet --isolation chroot "${stamp[@]}" "$@"
}
build -f deploy/docker/Dockerfile --target "$target" --build-arg BASE=localhost/base:bookworm \
  --build-arg PYTHON_BASE=localhost/base:bookworm -t localhost/weir:built dist
if [[ $target == python ]]; then
  storage tag localhost/weir:built "localhost/weir-python:$(<VERSION)"
  build -f deploy/compose/Dockerfile -t localhost/weir:built examples
fi
storage inspect --type image localhost/weir:built >"$out/image.json"
[[ -z $oci ]] || storage push --quiet localhost/weir:built "oci:$oci:$(<VERSION)"
ln -s "$(storage mount "$(storage from localhost/weir:built)")" "$out/root"
rm "$out/base.tar"

#!/bin/bash
# Builds the image of deploy/docker/Dockerfile without docker and without a registry, from the bundle in dist/: with buildah, on
# a base that mmdebstrap makes from the Debian mirror of this machine's apt. Needs root.
#
#   tools/build_image.sh DIR
#
# DIR, which must not exist, then has root (the image's files), image.json (what buildah knows of it) and storage (of buildah).
set -euo pipefail

out=$1
mkdir "$out"
storage() {
  buildah --storage-driver vfs --root "$out/storage" --runroot "$out/storage-run" "$@"
}

# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Codename: bookworm' 'Origin: Debian' | head -1)
[[ -n $mirror ]] || { echo "build_image: apt has no mirror of Debian bookworm: see /etc/apt" >&2; exit 1; }
mmdebstrap --quiet --variant=minbase bookworm "$out/base.tar" "$mirror"
base=$(storage from scratch)
storage add --quiet "$base" "$out/base.tar" /
storage commit --quiet "$base" localhost/base:bookworm
storage bud --quiet --isolation chroot -f deploy/docker/Dockerfile --build-arg BASE=localhost/base:bookworm \
  -t localhost/weir:built dist
storage inspect --type image localhost/weir:built >"$out/image.json"
ln -s "$(storage mount "$(storage from localhost/weir:built)")" "$out/root"
rm "$out/base.tar"

#!/bin/bash
# Packs what `./dev bundle` built: the programs and every library they need but glibc's own, found through RPATH
# ($ORIGIN/../lib). Then starts each program where there is nothing but the bundle and glibc.
set -euo pipefail

readonly NAME=weir-linux-x86_64
# Parts of glibc, which must be the target's own; and the GPU driver's library, which belongs to its kernel module.
readonly NOT_BUNDLED='^(ld-linux-x86-64|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libcuda)\.so'

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/$NAME
mkdir -p "$stage/bin" "$stage/lib"

for program in cli/weir bench/weir_bench ps_server/ps_server worker/worker; do
  install -m 755 "bazel-bin/$program" "$stage/bin/"
  strip --strip-debug "$stage/bin/$(basename "$program")"
  # ldd follows dependencies of dependencies too. "name => path (address)"
  ldd "bazel-bin/$program" | while read -r name arrow path _; do
    [[ $arrow == '=>' && ! $name =~ $NOT_BUNDLED ]] || continue
    [[ $path == /* ]] || { echo "bundle: $program needs $name, which is not found" >&2; exit 1; }
    cp -Lu "$path" "$stage/lib/$name"
  done
done
cp -r configs "$stage/"
cp LICENSE README.md "$stage/"

# A root with glibc's parts alone. The loader is called by name: there is no /proc, where it would find $ORIGIN.
root=$work/root
mkdir -p "$root/lib64" "$root/lib/x86_64-linux-gnu" "$root/weir"
cp -r "$stage/." "$root/weir/"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
for name in libc libm libmvec libpthread libdl librt libresolv; do
  cp -L /lib/x86_64-linux-gnu/$name.so.* "$root/lib/x86_64-linux-gnu/" 2>/dev/null || true
done
for program in weir weir_bench ps_server worker; do
  env -i LD_BIND_NOW=1 /usr/sbin/chroot "$root" /lib64/ld-linux-x86-64.so.2 "/weir/bin/$program" --help >/dev/null || {
    echo "bundle: '$program --help' fails where there is nothing but the bundle and glibc" >&2
    exit 1
  }
done

mkdir -p dist
tar -C "$work" --owner=0 --group=0 --sort=name -czf "dist/$NAME.tar.gz" "$NAME"
if [[ -n ${SUDO_UID:-} ]]; then chown "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" dist "dist/$NAME.tar.gz"; fi
echo "dist/$NAME.tar.gz: $(du -h "dist/$NAME.tar.gz" | cut -f1), $(find "$stage/lib" -type f | wc -l) libraries"

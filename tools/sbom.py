#!/usr/bin/python3
"""Writes the software bill of materials of a bundle, as SPDX 2.3 in JSON (https://spdx.github.io/spdx-spec/v2.3/).

    sbom.py --name=BUNDLE --version=VERSION [--built-with=PACKAGE]... LIBRARY... > FILE

LIBRARY is a file of this machine that the bundle holds a copy of. dpkg says which Debian package has installed the file; a file that no
package has installed is listed by itself, with its checksum. --built-with names Debian packages of which headers or static
libraries are compiled in. The bill's time is SOURCE_DATE_EPOCH, or else now."""
import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.parse
import uuid

BUNDLE = "SPDXRef-Bundle"
# Debian keeps licences as text, in /usr/share/doc/PACKAGE/copyright.
UNKNOWN = {"downloadLocation": "NOASSERTION", "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
           "copyrightText": "NOASSERTION", "filesAnalyzed": False}


def dpkg(*arguments):
    """What dpkg-query prints; None if it finds nothing."""
    done = subprocess.run(["dpkg-query", *arguments], check=False, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def owner(library):
    """The package that has installed the file, or None. dpkg knows some files by the paths that they had before /usr was merged."""
    path = str(library.resolve())
    for name in path, path.removeprefix("/usr"):
        found = dpkg("--search", name)
        if found is not None:
            return found.split(":")[0]
    return None


def element(name, version, more):
    identifier = "SPDXRef-" + "".join(c if c.isalnum() else "-" for c in name)
    return {"SPDXID": identifier, "name": name} | ({"versionInfo": version} if version else {}) | UNKNOWN | more


def debian_package(package, distribution):
    fields = "${Package}\t${Version}\t${Architecture}\t${Maintainer}\n"
    shown = dpkg("--show", f"--showformat={fields}", package)
    if shown is None:
        sys.exit(f"sbom: the package {package} is not installed")
    name, version, architecture, maintainer = shown.splitlines()[0].split("\t")
    purl = f"pkg:deb/debian/{name}@{urllib.parse.quote(version, safe='')}?arch={architecture}&distro={distribution}"
    return element(name, version, {
        "supplier": f"Organization: {maintainer}",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}],
    })


def file_of_no_package(library):
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    return element(library.name, library.resolve().name.partition(".so.")[2], {
        "packageFileName": library.name, "checksums": [{"algorithm": "SHA256", "checksumValue": digest}]})


def bill(name, version, libraries, built_with):
    release = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text(encoding="utf-8").splitlines() if "=" in line)
    distribution = release.get("VERSION_CODENAME", "unknown").strip('"')
    owners = {library: owner(library) for library in libraries}
    held = [debian_package(package, distribution) for package in sorted({package for package in owners.values() if package})]
    held += [file_of_no_package(library) for library, package in sorted(owners.items()) if package is None]
    compiled_in = [debian_package(package, distribution) for package in sorted(built_with)]
    bundle = element(name, version, {"SPDXID": BUNDLE, "licenseDeclared": "Apache-2.0", "primaryPackagePurpose": "APPLICATION"})

    contents = json.dumps([bundle, held, compiled_in])
    created = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))

    def relation(one, how, other):
        return {"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other}
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name}-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{version}-{uuid.uuid5(uuid.NAMESPACE_URL, contents)}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", created), "creators": ["Organization: Weir"]},
        "packages": [bundle, *held, *compiled_in],
        "relationships": [
            relation("SPDXRef-DOCUMENT", "DESCRIBES", BUNDLE),
            *(relation(BUNDLE, "CONTAINS", package["SPDXID"]) for package in held),
            *(relation(package["SPDXID"], "BUILD_DEPENDENCY_OF", BUNDLE) for package in compiled_in),
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--built-with", action="append", default=[], metavar="PACKAGE")
    parser.add_argument("libraries", nargs="+", type=pathlib.Path, metavar="LIBRARY")
    arguments = parser.parse_args()
    json.dump(bill(arguments.name, arguments.version, arguments.libraries, arguments.built_with), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()

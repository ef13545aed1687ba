#!/usr/bin/python3
"""tools/sbom.py, for libraries of this machine: every test machine has the packages of gRPC."""
import hashlib
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import unittest.mock

SCRIPT = pathlib.Path("tools/sbom.py").resolve()
LIBRARY = "/usr/lib/x86_64-linux-gnu/libgrpc.so.29"


def run(*arguments):
    return subprocess.run(["/usr/bin/python3", SCRIPT, "--name=bundle", "--version=1.2", *arguments], check=False,
                          capture_output=True, text=True)


def packages(bill):
    return {package["name"]: package for package in bill["packages"]}


def installed_version(package):
    return subprocess.run(["dpkg-query", "--show", "--showformat=${Version}", package], check=True, capture_output=True,
                          text=True).stdout


class Sbom(unittest.TestCase):
    def bill(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def related(self, bill, how):
        names = {package["SPDXID"]: package["name"] for package in bill["packages"]}
        return [(names.get(relation["spdxElementId"]), names.get(relation["relatedSpdxElement"]))
                for relation in bill["relationships"] if relation["relationshipType"] == how]

    def test_the_package_of_a_library(self):
        bill = self.bill(LIBRARY)
        self.assertEqual(self.related(bill, "CONTAINS"), [("bundle", "libgrpc29")])
        version = installed_version("libgrpc29")
        package = packages(bill)["libgrpc29"]
        self.assertEqual(package["versionInfo"], version)
        purl = package["externalRefs"][0]["referenceLocator"]
        self.assertTrue(purl.startswith(f"pkg:deb/debian/libgrpc29@{version.replace('+', '%2B')}?arch="), purl)

    def test_two_libraries_of_one_package_are_one_entry(self):
        self.assertEqual(len(packages(self.bill(LIBRARY, "/usr/lib/x86_64-linux-gnu/libgpr.so.29"))), 2)

    def test_what_is_compiled_in(self):
        self.assertEqual(self.related(self.bill("--built-with=libgrpc-dev", LIBRARY), "BUILD_DEPENDENCY_OF"),
                         [("libgrpc-dev", "bundle")])

    def test_a_file_of_no_package_is_listed_by_itself(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            library = pathlib.Path(folder) / "libcublas.so.13.1"
            library.write_bytes(b"a library")
            package = packages(self.bill(library))["libcublas.so.13.1"]
        self.assertEqual(package["versionInfo"], "13.1")
        self.assertEqual(package["checksums"][0]["checksumValue"], hashlib.sha256(b"a library").hexdigest())

    def test_the_time_that_is_given_makes_the_same_bill(self):
        with unittest.mock.patch.dict(os.environ, {"SOURCE_DATE_EPOCH": "86400"}):
            bill, again, other = self.bill(LIBRARY), self.bill(LIBRARY), self.bill("--built-with=libgrpc-dev", LIBRARY)
        self.assertEqual(bill, again)
        self.assertEqual(bill["creationInfo"]["created"], "1970-01-02T00:00:00Z")
        self.assertNotEqual(bill["documentNamespace"], other["documentNamespace"])

    def test_what_spdx_demands(self):
        bill = self.bill("--built-with=libgrpc-dev", LIBRARY)
        self.assertEqual((bill["spdxVersion"], bill["dataLicense"]), ("SPDX-2.3", "CC0-1.0"))
        self.assertIn({"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                       "relatedSpdxElement": packages(bill)["bundle"]["SPDXID"]}, bill["relationships"])
        identifiers = [package["SPDXID"] for package in bill["packages"]]
        self.assertEqual(len(set(identifiers)), len(identifiers))
        for package in bill["packages"]:
            self.assertRegex(package["SPDXID"], r"^SPDXRef-[A-Za-z0-9.-]+$")
            self.assertIn("downloadLocation", package)

    def test_a_package_that_is_not_installed(self):
        done = run("--built-with=no-such-package", LIBRARY)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "sbom: the package no-such-package is not installed\n")


if __name__ == "__main__":
    unittest.main()

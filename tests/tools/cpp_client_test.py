#!/usr/bin/python3
"""The bundle's part for C++, as a user has it: examples/cpp builds with CMake, and with pkg-config, outside of Bazel and of the source
tree, and trains, all as docs/cpp.md says; what the public headers declare can be linked; and a program takes its libraries from the bundle.
"""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

STAGE = pathlib.Path("tools/cpp/stage.sh").resolve()
LIBRARY = pathlib.Path("client/libweir_client.so").resolve()
WEIR = pathlib.Path("cli/weir").absolute()
# Of the system: what a bundle does not bring, and the C++ runtime of the compiler.
SYSTEM = re.compile(r"/(ld-linux-x86-64|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libstdc\+\+|libgcc_s)\.so")
# A call of each function that the headers declare and do not define.
ALL_OF_IT = """
#include "client/client.h"
#include "client/task.h"
#include "common/program/exit_codes.h"
template <typename T> void Take(T what) { static volatile T taken; taken = what; (void)taken; }
int main() {
  using namespace weir;
  Take(&Client::Join); Take(&OptionsOfTask); Take(&ExitCodeOf); Take(&EndOnExhaustion);
  Take(&GradientGate::Ready); Take(&GradientGate::Fail); Take(&GradientGate::Attach);
  Take(&Initializer::HeNormal); Take(&Initializer::GlorotUniform); Take(&TensorSpec::elements); Take(&FillInitialValues);
  Take(&ModelSpec::elements); Take(&ModelSpec::offset); Take(&ModelSpec::TensorAt); Take(&ModelSpec::Describe);
  Take(&ModelSpec::uploaded); Take(&ModelSpec::Validate); Take(&ModelSpec::Hash); Take(&ModelSpec::FirstDifference);
  Take(&JobToken::Random); Take(&JobToken::Read); Take(&JobToken::ReadIfGiven); Take(&JobToken::Write);
  Take(&JobToken::Authorization); Take(&JobToken::Authorizes); Take(&JobToken::AuthorizesHttp); Take(&ReadPrivateFile);
  return absl::StatusOr<int>(absl::InternalError("x")).status().ToString().empty();
}
"""


def run(*command, **options):
    environment = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "LD_LIBRARY_PATH")}
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True,
                          env={**environment, **options.pop("environment", {})}, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} ends with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class CppClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))))
        # From the folder where ./dev bundle calls it.
        run(STAGE, cls.folder / "staged", LIBRARY, cwd=STAGE.parent.parent.parent)
        # As where a user unpacks it.
        cls.bundle = (cls.folder / "staged").rename(cls.folder / "unpacked")
        cls.example = cls.bundle / "examples/cpp"

    def compile(self, source, program):
        environment = {"PKG_CONFIG_PATH": str(self.bundle / "cpp/lib/pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "weir", environment=environment).split()
        run("g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", source, *flags, "-o", program)

    def check_libraries(self, program):
        lines = [line for line in run("ldd", program).splitlines() if "linux-vdso" not in line]
        self.assertIn("libweir_client.so", "".join(lines))
        for line in lines:
            self.assertTrue(f"{self.bundle}/" in line.replace("/lib/pkgconfig/../..", "") or SYSTEM.search(line), line)

    def check_trains(self, program):
        said = run(WEIR, "up", "--ps=2", "--workers=2", "--set", "train.epochs=5", self.example / "train.json", "--", program,
                   self.example / "train.json")
        # What rank 0 has reported.
        accuracy = re.search(r"test accuracy +([\d.]+)%", said)
        self.assertTrue(accuracy, said)
        self.assertGreater(float(accuracy[1]), 90)

    def test_cmake(self):
        build = self.folder / "build"
        run("cmake", "-S", self.example, "-B", build, f"-DCMAKE_PREFIX_PATH={self.bundle}/cpp", "-DCMAKE_CXX_FLAGS=-Wall -Werror")
        run("cmake", "--build", build)
        self.check_libraries(build / "train")
        self.check_trains(build / "train")

    def test_cmake_refuses_another_version(self):
        project = self.folder / "other"
        project.mkdir()
        for wanted in "0.99", "99":
            (project / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.16)\nproject(p NONE)\nfind_package(Weir {wanted} REQUIRED)\n")
            with self.assertRaisesRegex(AssertionError, f'requested version "{wanted}"'):
                run("cmake", "-S", project, "-B", project / wanted, f"-DCMAKE_PREFIX_PATH={self.bundle}/cpp")

    def test_pkg_config(self):
        program = self.folder / "train"
        self.compile(self.example / "train.cc", program)
        self.check_libraries(program)
        self.check_trains(program)
        with self.assertRaisesRegex(AssertionError, "ends with 78:\ntrain: there is no cluster: start this program with `weir up"):
            run(program, self.example / "train.json")

    def test_every_function_of_the_headers(self):
        source = self.folder / "all.cc"
        source.write_text(ALL_OF_IT)
        self.compile(source, self.folder / "all")
        run(self.folder / "all")

    def test_no_other_function(self):
        exported = run("nm", "-DC", "--defined-only", self.bundle / "cpp/lib/libweir_client.so")
        self.assertIn(" weir::Client::Join(", exported)
        self.assertNotIn(" weir::ClientImpl::", exported)


if __name__ == "__main__":
    unittest.main()

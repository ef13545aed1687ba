// Runs Catch2 under Bazel: if Bazel asks for an XML report (XML_OUTPUT_FILE), a JUnit report is written
// there, and the console shows the usual one if a test failed. Sharding and filters are Catch2's own.
#define CATCH_CONFIG_RUNNER
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"

int main(int argc, char** argv) {
  std::vector<std::string> args(argv, argv + argc);
  if (const char* filter = std::getenv("TESTBRIDGE_TEST_ONLY")) args.push_back(filter);
  const char* xml = std::getenv("XML_OUTPUT_FILE");
  if (xml != nullptr && argc == 1) {
    args.insert(args.end(), {"-r", "junit", "-o", xml});
  }
  std::vector<const char*> raw;
  for (const auto& a : args) raw.push_back(a.c_str());
  const int result = Catch::Session().run(static_cast<int>(raw.size()), raw.data());
  if (xml != nullptr && result != 0) {
    // Bazel prints this log for a failed test; the log holds the report.
    std::ifstream report(xml);
    std::string line;
    while (std::getline(report, line)) fprintf(stderr, "%s\n", line.c_str());
  }
  return result;
}

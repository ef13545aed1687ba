#include "tests/common/object_store/s3_server.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"

namespace weir {
namespace {

constexpr char kKeyId[] = "weir-test", kSecretKey[] = "weir-secret/+=", kRegion[] = "us-east-1";
constexpr std::chrono::seconds kStartLimit{120};

}  // namespace

S3Server::S3Server() {
  const char* const python = std::getenv("WEIR_S3_PYTHON");
  INFO("WEIR_S3_PYTHON names the Python that has moto; `./dev test` installs it, and sets the variable");
  REQUIRE(python != nullptr);
  static int count = 0;
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string listens =
      absl::StrCat(folder == nullptr ? "/tmp" : folder, "/s3-port-", getpid(), "-", count++);
  Subprocess::Options options;
  options.args = {python, "tests/common/object_store/s3_server.py", listens, kBucket};
  auto started = Subprocess::Start(std::move(options));
  REQUIRE(started.ok());
  process_ = *std::move(started);
  int port = 0;
  const auto deadline = std::chrono::steady_clock::now() + kStartLimit;
  while (port == 0) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    // Returns at once if the server has failed.
    REQUIRE_FALSE(
        process_->Wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(20)).has_value());
    std::ifstream(listens) >> port;
  }
  endpoint_ = absl::StrCat("http://127.0.0.1:", port);
}

S3Settings S3Server::settings() const { return {endpoint_, kRegion, {kKeyId, kSecretKey, ""}, {}}; }

S3Settings S3Server::settings(const std::string& token_file) const {
  S3Settings settings{endpoint_, kRegion, {}, {}};
  settings.web_identity = {token_file, "arn:aws:iam::123456789012:role/weir", "weir", endpoint_};
  return settings;
}

std::map<std::string, std::string> S3Server::environment() const {
  return {{"AWS_ENDPOINT_URL", endpoint_},
          {"AWS_REGION", kRegion},
          {"AWS_ACCESS_KEY_ID", kKeyId},
          {"AWS_SECRET_ACCESS_KEY", kSecretKey}};
}

ObjectStore::Options S3Server::options() const {
  ObjectStore::Options options;
  options.settings = settings();
  options.first_wait = absl::Milliseconds(1);
  options.longest_wait = absl::Milliseconds(8);
  return options;
}

std::string S3Server::Control(const std::string& method, const std::string& path) {
  HttpClient http({});
  HttpRequest request;
  request.method = method;
  request.url = absl::StrCat(endpoint_, "/-/", path);
  const auto answer = http.Send(request);
  REQUIRE(answer.status() == absl::OkStatus());
  REQUIRE(answer->status == 200);
  return answer->body;
}

void S3Server::SetFaults(const std::string& faults) { Control("POST", absl::StrCat("faults?", faults)); }

std::string S3Server::Counts() { return Control("GET", "counts"); }

}  // namespace weir

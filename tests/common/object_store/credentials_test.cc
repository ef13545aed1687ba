// Temporary keys for a token in a file, from a real STS server.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/object_store/object_store.h"
#include "common/object_store/s3_settings.h"
#include "tests/common/object_store/s3_server.h"

namespace weir {
namespace {

using Catch::Contains;
using Code = absl::StatusCode;

// All cases share one server.
S3Server& Server() {
  static S3Server* const server = new S3Server;
  return *server;
}

struct Fixture {
  Fixture() {
    WriteToken(S3Server::kIdentity);
    Server().SetFaults("");
  }
  ~Fixture() { Server().SetFaults(""); }
  void WriteToken(const std::string& token) { std::ofstream(token_file) << token << "\n"; }
  int Given() {
    const std::string counts = Server().Counts(), name = "\"keys\": ";
    const size_t at = counts.find(name);
    return at == std::string::npos ? 0 : std::atoi(counts.c_str() + at + name.size());
  }
  void Pass(absl::Duration time) { now += time; }

  const std::string token_file = std::string(std::getenv("TEST_TMPDIR")) + "/token";
  HttpClient http{{"us-east-1", "s3"}};
  absl::Time now = absl::Now();
  Credentials credentials{Server().settings(token_file), &http, [this] { return now; }};
};

TEST_CASE("Temporary keys are replaced before they expire, with the token that the file has then") {
  Fixture f;
  f.WriteToken("another-job");
  const absl::Status refused = f.credentials.Get().status();
  CHECK(refused.code() == Code::kPermissionDenied);
  CHECK_THAT(std::string(refused.message()),
             Contains("no keys for role arn:aws:iam::123456789012:role/weir from http://127.0.0.1:") &&
                 Contains("HTTP 400 InvalidIdentityToken: no such token; check AWS_ROLE_ARN, the token in "));
  f.WriteToken(S3Server::kIdentity);
  const auto first = f.credentials.Get();
  REQUIRE(first.status() == absl::OkStatus());
  CHECK(!first->session_token.empty());
  f.Pass(absl::Minutes(44));
  CHECK(f.credentials.Get()->key_id == first->key_id);
  CHECK(f.Given() == 1);
  f.Pass(absl::Minutes(2));
  const auto second = f.credentials.Get();
  REQUIRE(second.status() == absl::OkStatus());
  CHECK(second->key_id != first->key_id);
  CHECK(f.Given() == 2);
}

TEST_CASE("Keys that cannot be replaced are good until they expire") {
  Fixture f;
  const auto first = f.credentials.Get();
  REQUIRE(first.status() == absl::OkStatus());
  std::remove(f.token_file.c_str());
  f.Pass(absl::Minutes(46));
  CHECK(f.credentials.Get()->key_id == first->key_id);
  f.Pass(absl::Minutes(13));
  CHECK(f.credentials.Get()->key_id == first->key_id);
  f.Pass(absl::Minutes(2));
  CHECK(f.credentials.Get().status().code() == Code::kFailedPrecondition);
  CHECK_THAT(std::string(f.credentials.Get().status().message()),
             Contains("AWS_WEB_IDENTITY_TOKEN_FILE: " + f.token_file + " cannot be read, or is empty"));
  f.WriteToken(S3Server::kIdentity);
  Server().SetFaults("next=STS:500,STS:500");
  CHECK(f.credentials.Get().status().code() == Code::kUnavailable);
  CHECK(f.credentials.Get().status().code() == Code::kUnavailable);
  CHECK(f.credentials.Get().status() == absl::OkStatus());
}

TEST_CASE("While one caller gets new keys the others go on with the old ones") {
  Fixture f;
  const auto first = f.credentials.Get();
  REQUIRE(first.status() == absl::OkStatus());
  Server().SetFaults("next=STS:paused");
  f.Pass(absl::Minutes(46));
  absl::StatusOr<SigningKeys> renewed;
  std::thread renewing([&] { renewed = f.credentials.Get(); });
  while (!absl::StrContains(Server().Counts(), "paused")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const auto meanwhile = f.credentials.Get();
  renewing.join();
  REQUIRE(meanwhile.status() == absl::OkStatus());
  CHECK(meanwhile->key_id == first->key_id);
  REQUIRE(renewed.status() == absl::OkStatus());
  CHECK(renewed->key_id != first->key_id);
  CHECK(f.credentials.Get()->key_id == renewed->key_id);
}

TEST_CASE("A store works with temporary keys, and gets others when these have expired unforeseen") {
  Fixture f;
  ObjectStore::Options options = Server().options();
  options.settings = Server().settings(f.token_file);
  ObjectStore store(options);
  const ObjectName key{S3Server::kBucket, "temporary"};
  REQUIRE(store.Put(key, "content", {}) == absl::OkStatus());
  CHECK(f.Given() == 1);
  Server().SetFaults("expire=1");
  CHECK(store.Look(key)->bytes == 7);
  CHECK(f.Given() == 1);
  // They last for two seconds: by the clock of this machine, each use after that needs others.
  Server().SetFaults("expire=1&keys_seconds=2");
  CHECK(store.Look(key)->bytes == 7);
  const absl::Time since = absl::Now();
  while (absl::Now() - since < absl::Seconds(2)) REQUIRE(store.Look(key)->bytes == 7);
  CHECK(f.Given() >= 2);
  Server().SetFaults("expire=1");
  f.WriteToken("another-job");
  const absl::Status refused = store.Put(key, "more", {});
  CHECK(refused.code() == Code::kPermissionDenied);
  CHECK_THAT(std::string(refused.message()),
             Contains("cannot put s3://weir-test/temporary: no keys for role arn:aws:iam::"));
}

}  // namespace
}  // namespace weir

// The client of object storage against a real S3 server, with faults in between.
#include "common/object_store/object_store.h"

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/config/written_text.h"
#include "tests/common/object_store/s3_server.h"

namespace weir {
namespace {

using Catch::Contains;
using Code = absl::StatusCode;

const ObjectStore::Condition kAnything{};
const ObjectStore::Condition kFree{ObjectStore::Condition::kNothing, ""};

// All cases share one server; each uses keys of its own.
S3Server& Server() {
  static S3Server* const server = new S3Server;
  return *server;
}

ObjectName Key(const std::string& key) { return {S3Server::kBucket, key}; }

std::string ReadAll(ObjectStore& store, const ObjectName& name) {
  const auto info = store.Look(name);
  REQUIRE(info.status() == absl::OkStatus());
  std::string data(info->bytes, '\0');
  REQUIRE(store.Read(name, info->etag, 0, absl::MakeSpan(&data[0], data.size())) == absl::OkStatus());
  return data;
}

void PutPart(ObjectStore& store, ObjectStore::Upload& upload, absl::string_view data) {
  const auto part = store.PutPart(upload, upload.parts.size() + 1, data);
  REQUIRE(part.status() == absl::OkStatus());
  upload.parts.push_back(*part);
}

std::string Pattern(size_t bytes) {
  std::string data(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 31 + (i >> 12));
  return data;
}

TEST_CASE("Objects are put, read, listed and removed under any key") {
  ObjectStore store(Server().options());
  for (const std::string name : {"plain", "with space", "a+b&c=d?e#f", "ä/ö", "100%25", "~_.-"}) {
    const ObjectName key = Key("any/" + name);
    INFO(name);
    CHECK(store.Look(key).status().code() == Code::kNotFound);
    REQUIRE(store.Put(key, "content of " + name, kAnything) == absl::OkStatus());
    CHECK(ReadAll(store, key) == "content of " + name);
    std::string part(3, '\0');
    REQUIRE(store.Read(key, store.Look(key)->etag, 2, absl::MakeSpan(&part[0], 3)) == absl::OkStatus());
    CHECK(part == "nte");
  }
  const auto listing = store.List(S3Server::kBucket, "any/");
  REQUIRE(listing.status() == absl::OkStatus());
  CHECK(listing->folders == std::vector<std::string>{"ä"});
  std::map<std::string, uint64_t> sizes(listing->objects.begin(), listing->objects.end());
  CHECK(sizes.size() == 5);
  CHECK(sizes.at("a+b&c=d?e#f") == 22);
  for (const auto& [name, bytes] : sizes) REQUIRE(store.Remove(Key("any/" + name)) == absl::OkStatus());
  REQUIRE(store.Remove(Key("any/ä/ö")) == absl::OkStatus());
  CHECK(store.Remove(Key("any/ä/ö")) == absl::OkStatus());
  CHECK(store.List(S3Server::kBucket, "any/")->objects.empty());
}

TEST_CASE("A list of more than one page is whole") {
  ObjectStore store(Server().options());
  for (int i = 0; i < 1003; ++i) REQUIRE(store.Put(Key(absl::StrCat("many/", i)), "x", kAnything).ok());
  const auto listing = store.List(S3Server::kBucket, "many/");
  REQUIRE(listing.status() == absl::OkStatus());
  CHECK(listing->objects.size() == 1003);
}

TEST_CASE("A put takes effect only under its condition") {
  ObjectStore store(Server().options());
  const ObjectName key = Key("condition");
  REQUIRE(store.Put(key, "first", kFree) == absl::OkStatus());
  CHECK(store.Put(key, "second", kFree).code() == Code::kAlreadyExists);
  const std::string first = store.Look(key)->etag;
  REQUIRE(store.Put(key, "third", {ObjectStore::Condition::kThisVersion, first}) == absl::OkStatus());
  CHECK(store.Put(key, "fourth", {ObjectStore::Condition::kThisVersion, first}).code() == Code::kAborted);
  std::string data(5, '\0');
  CHECK(store.Read(key, first, 0, absl::MakeSpan(&data[0], 5)).code() == Code::kAborted);
  CHECK(ReadAll(store, key) == "third");
  const std::string third = store.Look(key)->etag;
  REQUIRE(store.Remove(key).ok());
  CHECK(store.Put(key, "fifth", {ObjectStore::Condition::kThisVersion, third}).code() == Code::kAborted);
  CHECK(store.Look(key).status().code() == Code::kNotFound);
}

TEST_CASE("Each fault passes, on each operation, and a put takes effect once") {
  ObjectStore store(Server().options());
  for (const std::string fault :
       {"500", "503", "409", "damaged", "cut", "lost", "lost500", "truncated", "slow"}) {
    INFO(fault);
    const auto next = [&](const std::string& method) {
      Server().SetFaults(absl::StrCat("next=", method, ":", fault, ",", method, ":", fault));
    };
    const ObjectName key = Key("fault/" + fault);
    next("PUT");
    // Without its token the put would find its own object in the way.
    REQUIRE(store.Put(key, "mine", kFree) == absl::OkStatus());
    CHECK(Contains(absl::StrCat("\"", fault, "\": 2")).match(Server().Counts()) ==
          (fault != "slow" && fault != "truncated"));
    next("PUT");
    CHECK(store.Put(key, "other", kFree).code() == Code::kAlreadyExists);
    next("PUT");
    const ObjectStore::Condition held{ObjectStore::Condition::kThisVersion, store.Look(key)->etag};
    REQUIRE(store.Put(key, "mine again", held) == absl::OkStatus());
    next("HEAD");
    CHECK(store.Look(key)->bytes == 10);
    next("GET");
    CHECK(ReadAll(store, key) == "mine again");
    next("GET");
    CHECK(store.List(S3Server::kBucket, "fault/")->objects.size() == 1);
    next("DELETE");
    CHECK(store.Remove(key) == absl::OkStatus());
    Server().SetFaults("");
    CHECK(store.Look(key).status().code() == Code::kNotFound);
  }
}

TEST_CASE("A put whose every try fails says so, and what comes late cannot break a condition") {
  ObjectStore::Options options = Server().options();
  options.limit = absl::ZeroDuration();
  ObjectStore once(options);
  ObjectStore store(Server().options());
  const ObjectName key = Key("late");
  REQUIRE(store.Put(key, "reserved", kFree).ok());
  const std::string reserved = store.Look(key)->etag;
  Server().SetFaults("next=PUT:late");
  const absl::Status status = once.Put(key, "late", {ObjectStore::Condition::kThisVersion, reserved});
  CHECK(status.code() == Code::kUnavailable);
  CHECK_THAT(std::string(status.message()), Contains("cannot put s3://weir-test/late: no answer from "));
  REQUIRE(store.Remove(key).ok());
  Server().SetFaults("");  // the late put comes now
  CHECK(store.Look(key).status().code() == Code::kNotFound);
}

TEST_CASE("An answer that does not come is no hang") {
  ObjectStore::Options options = Server().options();
  options.silence = absl::Seconds(1);
  ObjectStore store(options);
  Server().SetFaults("next=PUT:stalled");
  CHECK(store.Put(Key("stalled"), "x", kFree) == absl::OkStatus());
  Server().SetFaults("");
}

TEST_CASE("An answer that comes ever so slowly is no hang, either") {
  ObjectStore::Options options = Server().options();
  options.try_limit = absl::Seconds(1);
  ObjectStore store(options);
  REQUIRE(store.Put(Key("slow"), "content", kAnything) == absl::OkStatus());
  Server().SetFaults("next=GET:dribble");
  CHECK(ReadAll(store, Key("slow")) == "content");
  CHECK(Server().Counts() == R"({"dribble": 1})");
  Server().SetFaults("");
  // A longer one has more time.
  options.slowest = 1;
  ObjectStore patient(options);
  Server().SetFaults("next=GET:paused");
  CHECK(ReadAll(patient, Key("slow")) == "content");
  Server().SetFaults("");
}

TEST_CASE("A process that ends waits no longer for a store that is silent") {
  const auto put = [](const std::string& faults) {
    ObjectStore store(Server().options());
    Server().SetFaults(faults);
    store.EndWithin(absl::Milliseconds(300));
    const absl::Time begun = absl::Now();
    const absl::Status status = store.Put(Key("end"), "x", kAnything);
    CHECK(absl::Now() - begun < absl::Seconds(8));
    CHECK(status.code() == Code::kUnavailable);
    const absl::Time again = absl::Now();
    CHECK(store.Look(Key("end")).status().code() == Code::kUnavailable);
    CHECK(absl::Now() - again < absl::Seconds(3));
    Server().SetFaults("");
    return std::string(status.message());
  };
  CHECK_THAT(put("rate=1&kinds=stalled"), Contains("this process ends"));
  CHECK_THAT(put("rate=1&kinds=503"), Contains("this process ends") || Contains("HTTP 503"));
}

TEST_CASE("A reservation is sent once, so that it cannot come a second time") {
  ObjectStore store(Server().options());
  for (const std::string fault : {"lost", "lost500", "cut", "500"}) {
    INFO(fault);
    const ObjectName key = Key("once/" + fault);
    Server().SetFaults("next=PUT:" + fault + ",PUT:slow");
    CHECK(store.Reserve(key).code() == Code::kUnavailable);
    CHECK(Server().Counts() == absl::StrCat("{\"", fault, "\": 1}"));
    Server().SetFaults("");
    CHECK(store.Look(key).ok() == absl::StartsWith(fault, "lost"));
  }
  REQUIRE(store.Reserve(Key("once/free")) == absl::OkStatus());
  CHECK(store.Reserve(Key("once/free")).code() == Code::kAlreadyExists);
}

TEST_CASE("An object in parts is there once it is complete, whatever fails") {
  ObjectStore store(Server().options());
  const std::string data = Pattern((5 << 20) + 1000);
  const absl::string_view first = absl::string_view(data).substr(0, 5 << 20);
  const absl::string_view rest = absl::string_view(data).substr(5 << 20);
  for (const std::string fault : {"none", "500", "cut", "lost", "lost500", "truncated"}) {
    INFO(fault);
    const ObjectName key = Key("parts/" + fault);
    const auto next = [&](const std::string& method) {
      Server().SetFaults(fault == "none" ? "" : absl::StrCat("next=", method, ":", fault));
    };
    next("POST");
    auto upload = store.Begin(key);
    REQUIRE(upload.status() == absl::OkStatus());
    next("PUT");
    // Side by side, say.
    const auto second = store.PutPart(*upload, 2, rest);
    REQUIRE(second.status() == absl::OkStatus());
    PutPart(store, *upload, first);
    upload->parts.push_back(*second);
    CHECK(store.Look(key).status().code() == Code::kNotFound);
    next("POST");
    REQUIRE(store.Complete(*upload, kFree) == absl::OkStatus());
    Server().SetFaults("");
    CHECK(ReadAll(store, key) == data);

    auto other = store.Begin(key);
    REQUIRE(other.ok());
    PutPart(store, *other, "other");
    CHECK(store.Complete(*other, kFree).code() == Code::kAlreadyExists);
    next("DELETE");
    CHECK(store.Abort(*other) == absl::OkStatus());
    Server().SetFaults("");
    CHECK(ReadAll(store, key) == data);
  }
  // The store may take minutes to join the parts. It then sends blanks, or nothing; and it may have said 200
  // before it failed.
  ObjectStore::Options options = Server().options();
  options.silence = absl::Seconds(1);
  ObjectStore impatient(options);
  for (const std::string fault : {"blanks", "paused", "error200"}) {
    INFO(fault);
    const ObjectName key = Key("parts/" + fault);
    auto upload = impatient.Begin(key);
    REQUIRE(upload.status() == absl::OkStatus());
    PutPart(impatient, *upload, "data");
    Server().SetFaults(absl::StrCat("next=POST:", fault));
    REQUIRE(impatient.Complete(*upload, kFree) == absl::OkStatus());
    CHECK(Server().Counts() == absl::StrCat("{\"", fault, "\": 1}"));
    Server().SetFaults("");
    CHECK(ReadAll(store, key) == "data");
  }
  auto taken = store.Begin(Key("parts/taken"));
  PutPart(store, *taken, "data");
  Server().SetFaults("next=POST:taken200");
  CHECK(store.Complete(*taken, kFree).code() == Code::kAlreadyExists);
  Server().SetFaults("");
  // A lost answer to Begin() leaves an upload that nobody knows; it can be found and freed.
  const auto left = store.Unfinished(S3Server::kBucket, "parts/");
  REQUIRE(left.status() == absl::OkStatus());
  CHECK(!left->empty());
  for (const ObjectStore::Upload& upload : *left) REQUIRE(store.Abort(upload) == absl::OkStatus());
  CHECK(store.Unfinished(S3Server::kBucket, "parts/")->empty());
}

TEST_CASE("What will not pass is told at once, with what to do") {
  const auto fails = [](const std::function<void(ObjectStore::Options&)>& spoil, const ObjectName& name) {
    ObjectStore::Options options = Server().options();
    spoil(options);
    return ObjectStore(options).List(name.bucket, name.key).status();
  };
  const absl::Status secret = fails([](auto& o) { o.settings.keys.secret_key = "wrong"; }, Key("x/"));
  CHECK(secret.code() == Code::kPermissionDenied);
  CHECK_THAT(std::string(secret.message()), Contains("cannot list s3://weir-test/x/: HTTP 403"));
  CHECK_THAT(std::string(secret.message()), Contains("SignatureDoesNotMatch"));
  CHECK_THAT(std::string(secret.message()), Contains("check AWS_SECRET_ACCESS_KEY"));
  const absl::Status bucket = fails([](auto&) {}, {"no-such-bucket", "x/"});
  CHECK(bucket.code() == Code::kFailedPrecondition);
  CHECK_THAT(std::string(bucket.message()), Contains("make bucket 'no-such-bucket' first"));
  const absl::Status url = fails([](auto& o) { o.settings.endpoint = "http://[bad"; }, Key("x/"));
  CHECK(url.code() == Code::kFailedPrecondition);
  const absl::Status nobody = fails(
      [](auto& o) {
        o.settings.endpoint = "http://127.0.0.1:1";
        o.limit = absl::Milliseconds(20);
      },
      Key("x/"));
  CHECK(nobody.code() == Code::kUnavailable);
  CHECK_THAT(std::string(nobody.message()), Contains("no answer from http://127.0.0.1:1/weir-test"));
}

TEST_CASE("Where this machine's clock is wrong, requests bear the store's time after the first one") {
  const auto ahead = [](const char* seconds) {
    Server().SetFaults(absl::StrCat("ahead=", seconds));
    return absl::MakeCleanup([] { Server().SetFaults(""); });
  };
  for (const char* seconds : {"7200", "-7200"}) {
    INFO(seconds);
    const auto wrong = ahead(seconds);
    ObjectStore store(Server().options());
    // The answer to a HEAD has no code, but the store's time.
    CHECK(store.Look(Key("clock/none")).status().code() == Code::kNotFound);
    CHECK_THAT(Server().Counts(), Contains("\"skewed\": 1"));
    CHECK(store.Put(Key("clock/a"), "a", kAnything) == absl::OkStatus());
    CHECK(ReadAll(store, Key("clock/a")) == "a");
    CHECK_THAT(Server().Counts(), Contains("\"skewed\": 1"));
  }
  {
    const auto wrong = ahead("7200");
    ObjectStore store(Server().options());
    CHECK(store.List(S3Server::kBucket, "clock/").status() == absl::OkStatus());
    CHECK_THAT(Server().Counts(), Contains("\"skewed\": 1"));
    // A refusal stays a refusal.
    ObjectStore::Options options = Server().options();
    options.settings.keys.secret_key = "wrong";
    ObjectStore refused(options);
    CHECK(refused.List(S3Server::kBucket, "clock/").status().code() == Code::kPermissionDenied);
    CHECK(refused.Look(Key("clock/a")).status().code() == Code::kPermissionDenied);
  }
  // A store whose clock is always another one.
  const auto wrong = ahead("7200&drifts=1");
  ObjectStore::Options options = Server().options();
  options.limit = absl::Milliseconds(100);
  const absl::Status status = ObjectStore(options).List(S3Server::kBucket, "clock/").status();
  CHECK(status.code() == Code::kUnavailable);
  CHECK_THAT(std::string(status.message()),
             Contains("RequestTimeTooSkewed: the clocks differ; this machine's "
                      "clock says 20") &&
                 Contains(", the store's 20") && Contains("set the clock"));
}

using Environment = std::map<std::string, std::string>;

absl::StatusOr<S3Settings> SettingsOf(const Environment& environment) {
  return S3Settings::FromEnvironment([&](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

TEST_CASE(
    "Blanks and line ends around a variable's value are no part of it, and others are refused by its name") {
  const Environment clean = {{"AWS_ACCESS_KEY_ID", "id"},
                             {"AWS_SECRET_ACCESS_KEY", "sec/ret+="},
                             {"AWS_SESSION_TOKEN", "token"},
                             {"AWS_REGION", "eu-west-1"},
                             {"AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000"}};
  for (const std::string behind : {"\n", "\r\n", " ", "\t", " \n\n"}) {
    Environment environment = clean;
    for (auto& [name, value] : environment) value = behind + value + behind;
    const auto settings = SettingsOf(environment);
    REQUIRE(settings.status() == absl::OkStatus());
    CHECK(settings->keys.key_id == "id");
    CHECK(settings->keys.secret_key == "sec/ret+=");
    CHECK(settings->keys.session_token == "token");
    CHECK(settings->region == "eu-west-1");
    CHECK(settings->endpoint == "http://127.0.0.1:9000");
  }
  for (const auto& [name, value] : clean) {
    for (const std::string& bad : std::vector<std::string>{"x y",
                                                           "x\ny",
                                                           {"a\0b", 3},
                                                           "\xef\xbb\xbf"
                                                           "a"}) {
      Environment environment = clean;
      environment[name] = bad;
      const std::string message(SettingsOf(environment).status().message());
      CHECK_THAT(message, Contains(name + ": its character ") && Contains("which cannot be in it"));
      CHECK_THAT(message, !Contains(bad));
    }
  }
  Environment empty = clean;
  empty["AWS_ACCESS_KEY_ID"] = "\n";
  CHECK_THAT(std::string(SettingsOf(empty).status().message()), Contains("has no AWS_ACCESS_KEY_ID"));
}

TEST_CASE("The CAs that are trusted are those of the first variable that names a file") {
  Environment environment = {{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "secret"}};
  CHECK(SettingsOf(environment)->ca.file.empty());
  const std::string file = std::string(std::getenv("TEST_TMPDIR")) + "/ca.pem";
  std::ofstream(file) << "-----BEGIN CERTIFICATE-----\n";
  for (const char* variable : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"}) {
    environment[variable] = file + "\n";
    REQUIRE(SettingsOf(environment).status() == absl::OkStatus());
    CHECK(SettingsOf(environment)->ca.file == file);
    CHECK(SettingsOf(environment)->ca.variable == variable);
  }
  environment["AWS_CA_BUNDLE"] = "/nowhere/ca.pem";
  CHECK_THAT(std::string(SettingsOf(environment).status().message()),
             Contains("AWS_CA_BUNDLE: /nowhere/ca.pem cannot be read"));
}

TEST_CASE("The environment says how object storage is reached") {
  Environment environment;
  const auto read = [&] { return SettingsOf(environment); };
  CHECK_THAT(std::string(read().status().message()), Contains("the environment has no AWS_ACCESS_KEY_ID"));
  environment["AWS_ACCESS_KEY_ID"] = "id";
  CHECK_THAT(std::string(read().status().message()),
             Contains("the environment has no AWS_SECRET_ACCESS_KEY"));
  environment["AWS_SECRET_ACCESS_KEY"] = "secret";
  REQUIRE(read().ok());
  CHECK(read()->BucketUrl("b-1") == "https://b-1.s3.us-east-1.amazonaws.com");
  CHECK(read()->BucketUrl("b.1") == "https://s3.us-east-1.amazonaws.com/b.1");
  environment["AWS_DEFAULT_REGION"] = "eu-west-1";
  environment["AWS_SESSION_TOKEN"] = "token";
  CHECK(read()->region == "eu-west-1");
  CHECK(read()->keys.session_token == "token");
  environment["AWS_REGION"] = "eu-west-2";
  CHECK(read()->region == "eu-west-2");
  environment["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9000/";
  CHECK(read()->BucketUrl("b.1") == "http://127.0.0.1:9000/b.1");
  environment["AWS_ENDPOINT_URL_S3"] = "127.0.0.1:9001";
  CHECK_THAT(std::string(read().status().message()),
             Contains("AWS_ENDPOINT_URL_S3 must begin with http:// or https://, got '127.0.0.1:9001'"));
  environment["AWS_ENDPOINT_URL_S3"] = "http://127.0.0.1:9001";

  // Keys go before a token in a file.
  environment["AWS_WEB_IDENTITY_TOKEN_FILE"] = "/token";
  REQUIRE(read().ok());
  CHECK_FALSE(read()->web_identity.has_value());
  environment.erase("AWS_ACCESS_KEY_ID");
  CHECK_THAT(std::string(read().status().message()), Contains("the environment has no AWS_ACCESS_KEY_ID"));
  environment.erase("AWS_SECRET_ACCESS_KEY");
  CHECK_THAT(std::string(read().status().message()), Contains("needs AWS_ROLE_ARN"));
  environment["AWS_ROLE_ARN"] = "arn:aws:iam::123456789012:role/weir";
  REQUIRE(read().ok());
  CHECK(read()->web_identity->token_file == "/token");
  CHECK(read()->web_identity->session_name == "weir");
  CHECK(read()->web_identity->endpoint == "http://127.0.0.1:9000");
  environment.erase("AWS_ENDPOINT_URL");
  CHECK(read()->web_identity->endpoint == "https://sts.eu-west-2.amazonaws.com");
  environment["AWS_ENDPOINT_URL_STS"] = "http://127.0.0.1:9002";
  environment["AWS_ROLE_SESSION_NAME"] = "digits";
  CHECK(read()->web_identity->endpoint == "http://127.0.0.1:9002");
  CHECK(read()->web_identity->session_name == "digits");
}

TEST_CASE("A path in object storage has a bucket and a prefix") {
  for (const char* good : {"s3://bucket/runs", "s3://bucket/runs/7/", "s3://b.c-1/x y"}) {
    CHECK(CheckObjectPath(good) == absl::OkStatus());
  }
  CHECK(ObjectNameOf("s3://bucket/runs/7/").ToString() == "s3://bucket/runs/7");
  for (const char* bad : {"s3://", "s3://bucket", "s3://bucket/", "s3:///runs", "s3://Bucket/x",
                          "s3://bucket//x", "s3://bucket/a/../b", "gs://bucket/x", "s3://bu/x"}) {
    INFO(bad);
    CHECK_THAT(std::string(CheckObjectPath(bad).message()), Contains("must be s3://BUCKET/PREFIX"));
  }
}

}  // namespace
}  // namespace weir

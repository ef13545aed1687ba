// The XML with which object storage lists objects and unfinished uploads, from an HTTP server that answers
// everything with the input.
#include "absl/strings/match.h"
#include "common/object_store/object_store.h"
#include "common/telemetry/http_server.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {
namespace {

constexpr char kBucket[] = "b", kPrefix[] = "p/";

struct Storage {
  Storage() : server(HttpServer::Start({}).value()) {
    server->Handle("/b/", "application/xml", [this] { return answer; });
  }
  // Read by the server's thread within requests only.
  std::string answer;
  std::unique_ptr<HttpServer> server;
};

ObjectStore MakeStore(const Storage& storage) {
  ObjectStore::Options options;
  options.settings.endpoint = "http://" + storage.server->address();
  options.settings.region = "us-east-1";
  options.settings.keys = {"key", "key", ""};
  options.limit = absl::ZeroDuration();  // one try
  return ObjectStore(std::move(options));
}

}  // namespace

bool ReadInput(absl::string_view input) {
  static Storage& storage = *new Storage;
  static ObjectStore& store = *new ObjectStore(MakeStore(storage));
  storage.answer = std::string(input);
  const absl::StatusOr<ObjectStore::Listing> listing = store.List(kBucket, kPrefix);
  if (listing.ok()) {
    for (const auto& [name, bytes] : listing->objects) FuzzCheck(!name.empty(), "an object has a name");
    for (const std::string& name : listing->folders) FuzzCheck(!name.empty(), "a folder has a name");
  }
  const absl::StatusOr<std::vector<ObjectStore::Upload>> uploads = store.Unfinished(kBucket, kPrefix);
  return listing.ok() || uploads.ok();
}

std::vector<std::string> Seeds() {
  return {
      R"(<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>p/</Prefix>
<IsTruncated>false</IsTruncated><Contents><Key>p/a%20b</Key><Size>12</Size></Contents>
<Contents><Key>p/c</Key><Size>0</Size></Contents><CommonPrefixes><Prefix>p/d/</Prefix></CommonPrefixes>
</ListBucketResult>)",
      R"(<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>
<Upload><Key>p/x</Key><UploadId>id&amp;1</UploadId></Upload></ListMultipartUploadsResult>)",
  };
}

std::vector<std::string> Words() {
  return {"<IsTruncated>true</IsTruncated>",
          "<NextContinuationToken>t</NextContinuationToken>",
          "<NextKeyMarker>k</NextKeyMarker>",
          "<NextUploadIdMarker>i</NextUploadIdMarker>",
          "<Contents><Key>p/e</Key><Size>1</Size></Contents>",
          "<Error><Code>SlowDown</Code></Error>",
          "<![CDATA[",
          "<!DOCTYPE",
          "&#0;",
          "%2",
          "%00"};
}

}  // namespace weir

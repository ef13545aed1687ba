// The client of object storage against a server whose answers no S3 server would give.
#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/object_store/object_store.h"
#include "common/telemetry/http_server.h"

namespace weir {
namespace {

using Catch::Contains;
using Code = absl::StatusCode;

TEST_CASE("A list that always goes on is refused") {
  const auto server = HttpServer::Start({}).value();
  std::atomic<int> page{0};
  server->Handle("/b/", "application/xml", [&page] {
    const std::string next = absl::StrCat("after-", ++page);
    const std::string more = "<IsTruncated>true</IsTruncated>";
    return absl::StrCat("<ListBucketResult>", more, "<NextContinuationToken>", next,
                        "</NextContinuationToken></ListBucketResult>", "<ListMultipartUploadsResult>", more,
                        "<NextKeyMarker>", next, "</NextKeyMarker></ListMultipartUploadsResult>");
  });
  ObjectStore::Options options;
  options.settings.endpoint = "http://" + server->address();
  options.settings.region = "us-east-1";
  options.settings.keys = {"key", "key", ""};
  ObjectStore store(options);

  const auto listing = store.List("b", "p/");
  CHECK(listing.status().code() == Code::kFailedPrecondition);
  CHECK_THAT(std::string(listing.status().message()),
             Contains("s3://b/p/: the list goes on after 1000 pages"));
  CHECK(page.exchange(0) == 1000);
  const auto uploads = store.Unfinished("b", "p/");
  CHECK(uploads.status().code() == Code::kFailedPrecondition);
  CHECK(page == 1000);
}

}  // namespace
}  // namespace weir

#include "common/rpc/identity.h"

#include <string>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

using Catch::Contains;

TEST_CASE("an identity is the same as URI and as DNS name") {
  for (const Identity& identity :
       {Identity{"job-1", Role::kWorker, 4294967295}, Identity{"j", Role::kServer, 0},
        Identity{"a0", Role::kReader, 0}, Identity{"a", Role::kAdmin, 0}}) {
    INFO(identity.ToUri() << " " << identity.ToDns());
    CHECK(IdentityOf({identity.ToUri()}, {}).value() == identity);
    CHECK(IdentityOf({}, {identity.ToDns()}).value() == identity);
    CHECK(IdentityOf({"https://example.org", identity.ToUri()}, {"localhost", identity.ToDns()}).value() ==
          identity);
  }
  CHECK(IdentityOf({"spiffe://j/worker/7"}, {}).value() == Identity{"j", Role::kWorker, 7});
  CHECK(IdentityOf({}, {"PS-3.J.weir"}).value() == Identity{"j", Role::kServer, 3});
}

TEST_CASE("a URI that is nearly an identity is refused") {
  for (const std::string uri :
       {"spiffe://j/worker", "spiffe://j/worker/", "spiffe://j/worker/01", "spiffe://j/worker/-1",
        "spiffe://j/worker/+1", "spiffe://j/worker/4294967296", "spiffe://j/worker/1/", "spiffe://j/reader/0",
        "spiffe://j/chief/0", "spiffe:///worker/1", "spiffe://J/worker/1", "spiffe://-j/worker/1",
        "spiffe://j.k/ps/0", "spiffe://j/admin/x", "SPIFFE://j/ps/0", "spiffe:j"}) {
    INFO(uri);
    CHECK(IdentityOf({uri}, {}).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("other DNS names are none") {
  for (const std::string name :
       {"worker.j.weir", "worker-.j.weir", "worker-01.j.weir", "*.j.weir", "ps-0.weir", "ps-0.j.k.weir",
        "ps-0.j.weir.org", "reader-0.j.weir", "ps-0.j.weird"}) {
    INFO(name);
    CHECK(IdentityOf({}, {name}).status().code() == absl::StatusCode::kNotFound);
  }
}

TEST_CASE("a certificate has one identity") {
  const auto two = IdentityOf({"spiffe://j/worker/1", "spiffe://j/ps/1"}, {});
  CHECK(two.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(two.status().message()), Contains("spiffe://j/worker/1 and spiffe://j/ps/1"));
  CHECK(IdentityOf({"spiffe://j/worker/1"}, {"worker-2.j.weir"}).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir

// The names in a certificate, which say who a process is: each a line, as "URI:..." or "DNS:...".
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/rpc/identity.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {

bool ReadInput(absl::string_view input) {
  std::vector<std::string> uris, dns_names;
  for (absl::string_view line : absl::StrSplit(input, '\n')) {
    if (absl::ConsumePrefix(&line, "URI:")) uris.emplace_back(line);
    if (absl::ConsumePrefix(&line, "DNS:")) dns_names.emplace_back(line);
  }
  const absl::StatusOr<Identity> identity = IdentityOf(uris, dns_names);
  if (!identity.ok()) return false;
  const absl::StatusOr<Identity> by_uri = IdentityOf({identity->ToUri()}, {});
  const absl::StatusOr<Identity> by_dns = IdentityOf({}, {identity->ToDns()});
  FuzzCheck(by_uri.ok() && *by_uri == *identity, "its URI names the same identity");
  FuzzCheck(by_dns.ok() && *by_dns == *identity, "its DNS name names the same identity");
  return true;
}

std::vector<std::string> Seeds() {
  return {
      "URI:spiffe://weir/worker/0",
      "URI:spiffe://job-7/ps/12\nDNS:ps-12.job-7.weir\nDNS:host.example.org",
      "URI:spiffe://weir/reader\nURI:https://example.org/",
      "DNS:Admin.Weir.weir",
      "URI:spiffe://weir/worker/1\nURI:spiffe://weir/worker/1",
      "DNS:worker-4294967295.weir.weir",
  };
}

std::vector<std::string> Words() {
  return {"URI:",   "DNS:",    "spiffe://", "/worker/", "/ps/", "/reader",
          "/admin", "worker-", "ps-",       ".weir",    "\n"};
}

}  // namespace weir

#include "common/config/address.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/config/json_document.h"

namespace weir {
namespace {

bool IsHostName(absl::string_view host) {
  return !host.empty() && host.size() <= 253 && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
  });
}

bool IsIpv6(absl::string_view host) {
  in6_addr ignored;
  const std::string without_zone(host.substr(0, host.find('%')));
  return inet_pton(AF_INET6, without_zone.c_str(), &ignored) == 1;
}

bool ParsePort(absl::string_view text, uint16_t* port) {
  uint32_t number;
  const bool digits =
      !text.empty() && text.size() <= 5 && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &number) || number > 65535) return false;
  *port = static_cast<uint16_t>(number);
  return true;
}

}  // namespace

std::string Address::ToString() const {
  if (is_unix()) return absl::StrCat("unix:", path);
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  const auto refuse = [text](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("address ", JsonQuote(text), " ", why,
                                                   "; an address is HOST:PORT, [IPv6]:PORT or unix:PATH"));
  };
  Address address;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    if (rest.empty()) return refuse("has no path");
    address.path = std::string(rest);
    return address;
  }
  const size_t colon = text.rfind(':');
  if (absl::StartsWith(text, "[")) {
    const size_t bracket = text.find(']');
    if (bracket == absl::string_view::npos) return refuse("has no closing bracket");
    if (bracket + 1 == text.size()) return refuse("has no port");
    if (bracket + 1 != colon) return refuse("has something other than a port after the bracket");
    if (!IsIpv6(text.substr(1, bracket - 1))) return refuse("has no IPv6 address in its brackets");
    address.host = absl::AsciiStrToLower(text.substr(1, bracket - 1));
  } else {
    if (colon == absl::string_view::npos) return refuse("has no port");
    if (text.find(':') != colon) {
      return refuse(IsIpv6(text.substr(0, colon)) || IsIpv6(text) ? "needs brackets around its IPv6 address"
                                                                  : "has more than one colon");
    }
    if (colon == 0) return refuse("has no host");
    if (!IsHostName(text.substr(0, colon))) return refuse("has characters that no host name has");
    address.host = absl::AsciiStrToLower(text.substr(0, colon));
  }
  const absl::string_view port = text.substr(colon + 1);
  if (port.empty()) return refuse("has no port");
  if (!ParsePort(port, &address.port)) {
    return refuse(absl::StrCat("has the port ", JsonQuote(port), ", which is not in 0..65535"));
  }
  return address;
}

}  // namespace weir

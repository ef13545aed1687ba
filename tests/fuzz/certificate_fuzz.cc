// A certificate's file: PEM. After "DER:" the input is what the PEM would hold.
#include <openssl/ui.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/tls.h"
#include "common/system/unique_fd.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {
namespace {

// For worker 0 of job weir, signed by itself, until 2126.
constexpr char kDer[] =
    "MIIBkTCCATigAwIBAgIUf1f2RVPJIng6Mgrp14b4m+yclhowCgYIKoZIzj0EAwIw"
    "DDEKMAgGA1UEAwwBdzAgFw0yNjExMjYwNjIyMzdaGA8yMTI2MTEwMjA2MjIzN1ow"
    "DDEKMAgGA1UEAwwBdzBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABKmorS2otEf9"
    "aL1Uu/RBYr/ToTtp3Au6bJsKnKO4lPrIHC9WpISZuB0relOHezLnAPsTeguqe5SX"
    "4NEsHYfNu22jdjB0MB0GA1UdDgQWBBQufP4cdw7dbAyCrXFVzGoDugpazjAfBgNV"
    "HSMEGDAWgBQufP4cdw7dbAyCrXFVzGoDugpazjAPBgNVHRMBAf8EBTADAQH/MCEG"
    "A1UdEQQaMBiGFnNwaWZmZTovL3dlaXIvd29ya2VyLzAwCgYIKoZIzj0EAwIDRwAw"
    "RAIgHVwGrJncA/83dICDJ47CC7/NLrcnzyBgGgRvv///3HICIGj8CmfG40Cu7sbb"
    "nHHsu/gVgzlaCEjxtp6VZUQYPPcp";

std::string Pem(absl::string_view der) {
  std::string pem = "-----BEGIN CERTIFICATE-----\n";
  const std::string text = absl::Base64Escape(der);
  for (size_t i = 0; i < text.size(); i += 64) absl::StrAppend(&pem, text.substr(i, 64), "\n");
  return pem + "-----END CERTIFICATE-----\n";
}

// OpenSSL asks the user with these functions.
bool ForbidQuestions() {
  UI_METHOD* const method = UI_create_method("nobody");
  UI_method_set_opener(method, [](UI*) {
    FuzzCheck(false, "nobody is asked for a pass phrase");
    return 0;
  });
  UI_set_default_method(method);
  return true;
}

}  // namespace

bool ReadInput(absl::string_view input) {
  [[maybe_unused]] static const bool forbidden = ForbidQuestions();
  const std::string text = absl::ConsumePrefix(&input, "DER:") ? Pem(input) : std::string(input);
  const UniqueFd file(memfd_create("certificate", MFD_CLOEXEC));
  FuzzCheck(file.valid() && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()),
            "this machine has room for a file");
  const std::string path = absl::StrCat("/proc/self/fd/", file.get());
  const absl::StatusOr<CertificateInfo> info = ReadCertificate(path);
  if (!info.ok()) {
    FuzzCheck(absl::StartsWith(info.status().message(), path), "a refusal names the file");
    return false;
  }
  const absl::StatusOr<Identity> by_uri = IdentityOf({info->identity.ToUri()}, {});
  FuzzCheck(by_uri.ok() && *by_uri == info->identity, "its URI names the same identity");
  return true;
}

std::vector<std::string> Seeds() {
  std::string der;
  FuzzCheck(absl::Base64Unescape(kDer, &der), "the seed is in base64");
  return {Pem(der), "DER:" + der, "a comment\n" + Pem(der) + Pem(der)};
}

std::vector<std::string> Words() {
  return {"DER:",
          "-----BEGIN CERTIFICATE-----\n",
          "-----END CERTIFICATE-----\n",
          "-----BEGIN TRUSTED CERTIFICATE-----\n",
          "-----BEGIN EC PRIVATE KEY-----\n",
          "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00112233\n\n",
          "spiffe://weir/worker/0",
          "spiffe://weir/reader",
          "worker-0.weir.weir",
          "\x55\x1d\x11",  // the extension with the names
          "\x86\x16",
          "\x82\x12"};
}

}  // namespace weir

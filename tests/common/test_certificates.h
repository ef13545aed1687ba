#pragma once

#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "catch2/catch.hpp"
#include "cli/certs/certificate_files.h"
#include "common/rpc/tls.h"

namespace weir {

// A CA, and certificates of it in files of a folder. For the main thread only.
class TestCertificates {
 public:
  using Validity = CertificateAuthority::Validity;

  // `folder` exists. `name` begins the names of the files.
  TestCertificates(std::string folder, const std::string& name)
      : prefix_(std::move(folder) + "/" + name + "-"),
        ca_(Must(CertificateAuthority::Create(name, Valid()))) {
    ca_path_ = Write("ca.pem", Must(ca_.Self()).certificate);
  }

  static Validity Valid() { return {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(24 * 100)}; }

  // A fresh key and certificate; `to` names the pair of files, and replaces one of that name.
  TlsFiles Issue(const Identity& identity, const std::string& to, const Validity& validity = Valid()) const {
    const CertificateAuthority::Pair pair = Must(ca_.Issue(identity, validity));
    return {ca_path_, Write(to + ".pem", pair.certificate), Write(to + ".key", pair.key)};
  }
  std::shared_ptr<const Tls> IssueTls(const Identity& identity) const {
    return Must(Tls::ReadIfGiven(Issue(identity, identity.ToDns())));
  }
  const std::string& ca_path() const { return ca_path_; }
  // The CA's own certificate.
  std::string ca_pem() const { return Must(ca_.Self()).certificate; }

 private:
  template <typename T>
  static T Must(absl::StatusOr<T> result) {
    INFO(result.status());
    REQUIRE(result.ok());
    return *std::move(result);
  }
  // As programs replace files: whole, by renaming.
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::string path = prefix_ + name;
    std::ofstream(path + ".new") << bytes;
    REQUIRE(chmod((path + ".new").c_str(), 0600) == 0);
    REQUIRE(std::rename((path + ".new").c_str(), path.c_str()) == 0);
    return path;
  }

  const std::string prefix_;
  const CertificateAuthority ca_;
  std::string ca_path_;
};

}  // namespace weir

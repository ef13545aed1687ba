#pragma once

#include "CLI/CLI.hpp"
#include "common/program/command_line.h"
#include "common/rpc/tls.h"

namespace weir {

// Adds the flags that name a process's files for TLS. Each may come from the environment, too.
inline void AddTlsFlags(CLI::App* app, TlsFiles* files) {
  const auto add = [app](const char* flag, std::string* path, const char* help, const char* variable) {
    FileOrVariable(app->add_option(flag, *path, help), variable);
  };
  add("--tls_ca", &files->ca, "TLS: the certificates of the CAs that the job's certificates come from",
      kTlsCaVariable);
  add("--tls_certificate", &files->certificate, "TLS: this process's certificate", kTlsCertificateVariable);
  add("--tls_key", &files->key, "TLS: the private key of --tls_certificate", kTlsKeyVariable);
}

}  // namespace weir

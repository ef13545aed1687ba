#pragma once

#include <string>

namespace weir {

struct CertsInitOptions {
  std::string directory;
  std::string spec;          // as --cluster
  std::string job = "weir";  // the job's name in the certificates
  int days = 365;
};

// `weir certs init`: the files (certificate_files.h) of each task of the cluster, of a reader and of an
// admin; and `weir certs check`. Return the exit code.
int RunCertsInit(const CertsInitOptions& options);
int RunCertsCheck(const std::string& path);

}  // namespace weir

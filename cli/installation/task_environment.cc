#include "cli/installation/task_environment.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/certs/certificate_files.h"
#include "common/base/host.h"
#include "common/config/json_document.h"

namespace weir {
namespace {

// PyTorch, OpenBLAS, MKL and OpenMP itself begin with this number of threads.
constexpr char kThreadsVariable[] = "OMP_NUM_THREADS";
// Python buffers up to 8 KiB of the output into a pipe, which a program that is killed loses.
constexpr char kUnbufferedVariable[] = "PYTHONUNBUFFERED";

constexpr char kJobOfCertificates[] = "weir";
constexpr absl::Duration kCertificatesLast = absl::Hours(24 * 365);

}  // namespace

absl::Status WriteTaskCertificates(const std::string& folder, int ps, int workers) {
  std::vector<Identity> identities = {TaskIdentity("evaluator", 0)};
  for (int i = 0; i < ps; ++i) identities.push_back(TaskIdentity("ps", i));
  for (int i = 0; i < workers; ++i) identities.push_back(TaskIdentity("worker", i));
  return WriteCertificates(folder, kJobOfCertificates, identities, absl::Now(), kCertificatesLast);
}

Identity TaskIdentity(const std::string& type, int index) {
  const Role role = type == "ps" ? Role::kServer : type == "worker" ? Role::kWorker : Role::kReader;
  return {kJobOfCertificates, role, role == Role::kReader ? 0 : static_cast<uint32_t>(index)};
}

std::map<std::string, std::string> ProgramEnvironment(const std::string& token_file,
                                                      const std::vector<std::string>& overrides) {
  std::map<std::string, std::string> environment;
  environment["WEIR_TOKEN_FILE"] = token_file;
  environment["WEIR_SET"] = JsonList(overrides);
  return environment;
}

void SetProgramEnvironment(int threads, std::map<std::string, std::string>* environment) {
  if (threads > 0 && std::getenv(kThreadsVariable) == nullptr) {
    (*environment)[kThreadsVariable] = absl::StrCat(threads);
  }
  if (std::getenv(kUnbufferedVariable) == nullptr) (*environment)[kUnbufferedVariable] = "1";
}

int ThreadsOfShare(int sharers) {
  // Each program would begin with a thread for each core, and these would spin while they wait for a core.
  const int cpus = UsableCpus();
  const bool shared = sharers > 1 || cpus < static_cast<int>(std::thread::hardware_concurrency());
  return shared ? std::max(1, cpus / sharers) : 0;
}

std::string JsonList(const std::vector<std::string>& texts) {
  const auto quoted = [](std::string* out, const std::string& text) {
    absl::StrAppend(out, JsonQuote(text));
  };
  return absl::StrCat("[", absl::StrJoin(texts, ",", quoted), "]");
}

void SetTaskEnvironment(const std::string& cluster, const std::string& type, int index, const TlsFiles& files,
                        std::map<std::string, std::string>* environment) {
  (*environment)["TF_CONFIG"] =
      absl::StrCat(R"({"cluster":)", cluster, R"(,"task":{"type":")", type, R"(","index":)", index, "}}");
  (*environment)[kTlsCaVariable] = files.ca;
  (*environment)[kTlsCertificateVariable] = files.certificate;
  (*environment)[kTlsKeyVariable] = files.key;
}

void RemoveIfThere(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace weir

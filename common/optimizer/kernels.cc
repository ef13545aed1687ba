#include "common/optimizer/kernels.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/cpu_levels.h"
#include "proto/job_config.pb.h"

namespace weir {
namespace {

// By KernelLevel.
constexpr const Kernels* kTables[] = {&kPlainKernels, &kAvx2Kernels, &kAvx512Kernels};

const Kernels& Table(KernelLevel level) { return *kTables[static_cast<size_t>(level)]; }

}  // namespace

bool HasKernels(KernelLevel level) {
  switch (level) {
    case KernelLevel::kPlain:
      return true;
    case KernelLevel::kAvx2:
      return HasAvx2();
    case KernelLevel::kAvx512:
      return HasAvx512();
  }
  return false;
}

std::vector<KernelLevel> AvailableKernelLevels() {
  std::vector<KernelLevel> levels;
  for (KernelLevel level : {KernelLevel::kPlain, KernelLevel::kAvx2, KernelLevel::kAvx512}) {
    if (HasKernels(level)) levels.push_back(level);
  }
  return levels;
}

absl::StatusOr<const Kernels*> KernelsFor(KernelLevel level) {
  if (HasKernels(level)) return &Table(level);
  const std::string here = absl::StrJoin(AvailableKernelLevels(), ", ", [](std::string* out, KernelLevel l) {
    absl::StrAppend(out, Table(l).name);
  });
  return absl::FailedPreconditionError(
      absl::StrCat("this CPU cannot run the ", Table(level).name, " kernels; it can run: ", here));
}

const Kernels& BestKernels() { return Table(AvailableKernelLevels().back()); }

absl::StatusOr<const Kernels*> KernelsFromConfig(const v1::ServerConfig& config) {
  auto named = [](absl::StatusOr<const Kernels*> kernels) -> absl::StatusOr<const Kernels*> {
    if (kernels.ok()) return kernels;
    return absl::Status(kernels.status().code(),
                        absl::StrCat("server.kernels: ", kernels.status().message(),
                                     ". Use \"auto\": every level gives the same bits."));
  };
  switch (config.kernels()) {
    case v1::ServerConfig::KERNELS_AUTO:
      return &BestKernels();
    case v1::ServerConfig::KERNELS_AVX512:
      return named(KernelsFor(KernelLevel::kAvx512));
    case v1::ServerConfig::KERNELS_AVX2:
      return named(KernelsFor(KernelLevel::kAvx2));
    case v1::ServerConfig::KERNELS_PLAIN:
      return named(KernelsFor(KernelLevel::kPlain));
    case v1::ServerConfig::KERNELS_UNSPECIFIED:
      break;
  }
  return absl::InvalidArgumentError("server.kernels: not set; it is one of auto, avx512, avx2, plain");
}

}  // namespace weir

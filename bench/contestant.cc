#include "bench/contestant.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/weir_contestant.h"

namespace weir::bench {
namespace {

std::map<std::string, Kind>& Kinds() {
  static auto& kinds = *new std::map<std::string, Kind>{
      {"raw", RawSockets()},
      {"ring", SharedRing()},
      {"protobuf", GrpcProtobuf()},
      {"weir", {StartWeirServer, ConnectWeirClient}},
  };
  return kinds;
}

}  // namespace

absl::StatusOr<Kind> FindKind(const std::string& name) {
  const auto found = Kinds().find(name);
  if (found != Kinds().end()) return found->second;
  return absl::InvalidArgumentError(absl::StrCat("no contestant is called '", name, "'"));
}

void AddKind(const std::string& name, Kind kind) { Kinds()[name] = std::move(kind); }

}  // namespace weir::bench

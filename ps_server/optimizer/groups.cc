#include "ps_server/optimizer/groups.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/job_config.pb.h"

namespace weir {
namespace {

std::string TensorNames(const ModelSpec& model) {
  constexpr size_t kMost = 50;
  std::string names;
  for (size_t i = 0; i < std::min(model.tensors.size(), kMost); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", model.tensors[i].name);
  }
  if (model.tensors.size() > kMost) absl::StrAppend(&names, " and ", model.tensors.size() - kMost, " more");
  return names;
}

}  // namespace

bool GlobMatches(absl::string_view pattern, absl::string_view text) {
  // The last '*' seen takes as few characters as possible. That is enough: if an earlier '*' could take more
  // characters, the last one can take them instead.
  size_t p = 0, t = 0;
  size_t after_star = absl::string_view::npos, star_end = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      star_end = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (after_star != absl::string_view::npos) {
      p = after_star;
      t = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == absl::string_view::npos;
}

absl::StatusOr<std::vector<TensorSettings>> ResolveGroups(const v1::OptimizerConfig& config,
                                                          const ModelSpec& model) {
  for (int i = 0; i < config.groups_size(); ++i) {
    const std::string& match = config.groups(i).match();
    if (std::none_of(model.tensors.begin(), model.tensors.end(),
                     [&](const TensorSpec& tensor) { return GlobMatches(match, tensor.name); })) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer.groups[", i, "].match: \"", match,
                       "\" fits no tensor of the model, whose tensors are: ", TensorNames(model)));
    }
  }
  std::vector<TensorSettings> settings(model.tensors.size());
  for (size_t i = 0; i < settings.size(); ++i) {
    settings[i].weight_decay = config.weight_decay();
    settings[i].clip_weights = config.clip_weights();
    for (const v1::GroupConfig& group : config.groups()) {
      if (!GlobMatches(group.match(), model.tensors[i].name)) continue;
      settings[i].learning_rate_factor = group.learning_rate_factor();
      if (group.has_weight_decay()) settings[i].weight_decay = group.weight_decay();
      if (group.has_clip_weights()) settings[i].clip_weights = group.clip_weights();
      settings[i].frozen = group.frozen();
      break;
    }
  }
  return settings;
}

}  // namespace weir

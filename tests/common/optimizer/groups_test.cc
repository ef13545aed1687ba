#include <string>

#include "catch2/catch.hpp"
#include "common/optimizer/optimizer.h"
#include "proto/job_config.pb.h"

namespace weir {
namespace {

ModelSpec MakeModel() {
  ModelSpec model;
  for (const char* name : {"dense_0/weight", "dense_0/bias", "dense_1/weight", "dense_1/bias"}) {
    TensorSpec tensor;
    tensor.name = name;
    tensor.shape = {3};
    model.tensors.push_back(tensor);
  }
  return model;
}

v1::GroupConfig* AddGroup(v1::OptimizerConfig& config, const std::string& match) {
  v1::GroupConfig* group = config.add_groups();
  group->set_match(match);
  return group;
}

TEST_CASE("Groups: globs") {
  struct {
    const char* pattern;
    const char* text;
    bool fits;
  } const cases[] = {
      {"", "", true},
      {"", "a", false},
      {"a", "", false},
      {"*", "", true},
      {"*", "a/b", true},
      {"**", "a", true},
      {"?", "", false},
      {"?", "a", true},
      {"?", "ab", false},
      {"a?c", "abc", true},
      {"a?c", "ac", false},
      {"abc", "abc", true},
      {"abc", "abcd", false},
      {"bc", "abc", false},
      {"*/bias", "d/bias", true},
      {"*/bias", "d/bias2", false},
      {"*/bias", "bias", false},
      {"a*", "abc", true},
      {"a*", "ba", false},
      {"*b*", "abc", true},
      {"*b*", "ac", false},
      {"a*c*e", "abcde", true},
      {"a*c*e", "abcdef", false},
      {"*ab", "aab", true},
      {"*aab", "aaaab", true},
      {"a*b?d", "abxbcd", true},
      {"*?", "", false},
      {"*?*", "a", true},
      {"[a]", "a", false},
      {"[a]", "[a]", true},
      {"a.c", "abc", false},
      {"*abab", "ababab", true},
  };
  for (const auto& c : cases) {
    CAPTURE(c.pattern, c.text);
    CHECK(GlobMatches(c.pattern, c.text) == c.fits);
  }
  // A pattern that would take for ever with naive backtracking.
  std::string pattern;
  for (int i = 0; i < 30; ++i) pattern += "a*";
  CHECK_FALSE(GlobMatches(pattern + "b", std::string(200, 'a')));
}

TEST_CASE("Groups: without groups every tensor has the optimizer's settings") {
  v1::OptimizerConfig config;
  config.set_weight_decay(0.5f);
  const auto settings = *ResolveGroups(config, MakeModel());
  REQUIRE(settings.size() == 4);
  for (const TensorSettings& s : settings) {
    CHECK(s.learning_rate_factor == 1);
    CHECK(s.weight_decay == 0.5);
    CHECK_FALSE(s.frozen);
  }
}

TEST_CASE("Groups: the first that fits holds, whole") {
  v1::OptimizerConfig config;
  config.set_weight_decay(0.5f);
  v1::GroupConfig* bias = AddGroup(config, "*/bias");
  bias->set_weight_decay(0);
  bias->set_learning_rate_factor(2);
  AddGroup(config, "dense_0/*")->set_frozen(true);
  AddGroup(config, "dense_?/*")->set_learning_rate_factor(0.25f);
  const auto settings = *ResolveGroups(config, MakeModel());
  REQUIRE(settings.size() == 4);

  CHECK(settings[0].learning_rate_factor == 1);  // dense_0/weight
  CHECK(settings[0].weight_decay == 0.5);
  CHECK(settings[0].frozen);
  CHECK(settings[1].learning_rate_factor == 2);  // dense_0/bias
  CHECK(settings[1].weight_decay == 0);
  CHECK_FALSE(settings[1].frozen);
  CHECK(settings[2].learning_rate_factor == 0.25);  // dense_1/weight
  CHECK(settings[2].weight_decay == 0.5);
  CHECK_FALSE(settings[2].frozen);
  CHECK(settings[3].learning_rate_factor == 2);  // dense_1/bias
  CHECK(settings[3].weight_decay == 0);
}

TEST_CASE("Groups: clip_weights replaces the optimizer's, and 0 switches it off") {
  v1::OptimizerConfig config;
  config.set_clip_weights(0.5f);
  AddGroup(config, "dense_0/weight")->set_clip_weights(2);
  AddGroup(config, "*/bias")->set_clip_weights(0);
  AddGroup(config, "dense_1/weight")->set_learning_rate_factor(3);
  const auto settings = *ResolveGroups(config, MakeModel());
  REQUIRE(settings.size() == 4);
  CHECK(settings[0].clip_weights == 2);     // dense_0/weight
  CHECK(settings[1].clip_weights == 0);     // dense_0/bias
  CHECK(settings[2].clip_weights == 0.5f);  // dense_1/weight
  CHECK(settings[3].clip_weights == 0);     // dense_1/bias
}

TEST_CASE("Groups: l2 replaces the optimizer's") {
  v1::OptimizerConfig config;
  config.set_l2(0.5f);
  AddGroup(config, "dense_0/weight")->set_l2(0.25f);
  AddGroup(config, "*/bias")->set_l2(0);
  const auto settings = *ResolveGroups(config, MakeModel());
  REQUIRE(settings.size() == 4);
  CHECK(settings[0].l2 == 0.25f);  // dense_0/weight
  CHECK(settings[1].l2 == 0);      // dense_0/bias
  CHECK(settings[2].l2 == 0.5f);   // dense_1/weight
  CHECK(settings[3].l2 == 0);      // dense_1/bias
}

TEST_CASE("Groups: one that fits no tensor is an error with the names that there are") {
  v1::OptimizerConfig config;
  AddGroup(config, "*/bias");
  AddGroup(config, "dense_2/*");
  const absl::Status status = ResolveGroups(config, MakeModel()).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(status.message() ==
        "optimizer.groups[1].match: \"dense_2/*\" fits no tensor of the model, whose tensors are: "
        "dense_0/weight, dense_0/bias, dense_1/weight, dense_1/bias");
  const absl::Status inner = ResolveGroups(config, MakeModel(), "local.inner").status();
  CHECK_THAT(std::string(inner.message()), Catch::StartsWith("local.inner.groups[1].match: "));
}

TEST_CASE("Groups: a long list of names is cut") {
  ModelSpec model;
  for (int i = 0; i < 60; ++i) {
    TensorSpec tensor;
    tensor.name = "t" + std::to_string(i);
    model.tensors.push_back(tensor);
  }
  v1::OptimizerConfig config;
  AddGroup(config, "x");
  const std::string message(ResolveGroups(config, model).status().message());
  CHECK_THAT(message, Catch::EndsWith("t48, t49 and 10 more"));
}

}  // namespace
}  // namespace weir

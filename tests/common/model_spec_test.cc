#include "common/model/model_spec.h"

#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"

namespace weir {
namespace {

ModelSpec TwoTensors() {
  return {{{"a/weight", {3, 4}, TensorKind::kParameter, Initializer::HeNormal(3)},
           {"a/bias", {4}, TensorKind::kParameter, Initializer::Zeros()}}};
}

TEST_CASE("Philox gives the published vectors") {
  // Random123's kat_vectors, philox4x32 10 rounds.
  CHECK(Philox(0, 0, 0) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox(~0ull, ~0ull, ~0ull) ==
        std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

TEST_CASE("A model spec knows its address space") {
  const ModelSpec m = TwoTensors();
  CHECK(m.elements() == 16);
  CHECK(m.offset(1) == 12);
  CHECK(m.TensorAt(11) == 0);
  CHECK(m.TensorAt(12) == 1);
  CHECK(m.Describe(13) == "a/bias[1]");
  CHECK(m.Validate().ok());
}

TEST_CASE("The first difference between two models is named") {
  const ModelSpec m = TwoTensors();
  ModelSpec other = m;
  CHECK(m.FirstDifference(other).empty());
  CHECK(m.Hash() == other.Hash());
  other.tensors[1].shape = {5};
  CHECK(m.FirstDifference(other) == "tensor 'a/bias': expected shape [4], got [5]");
  CHECK(m.Hash() != other.Hash());
  other = m;
  other.tensors.push_back({"b", {1}, TensorKind::kBuffer, {}});
  CHECK(m.FirstDifference(other) == "expected 2 tensors, got 3; the first unexpected one is 'b'");
}

TEST_CASE("A bad model spec is refused") {
  CHECK_FALSE(ModelSpec{}.Validate().ok());
  ModelSpec m = TwoTensors();
  m.tensors[1].name = "a/weight";
  CHECK(m.Validate().message() == "two tensors are named 'a/weight'");
  m = TwoTensors();
  m.tensors[0].shape[1] = 0;
  CHECK_FALSE(m.Validate().ok());
  m.tensors[0].shape = {1 << 30, 1 << 30};
  CHECK_FALSE(m.Validate().ok());
  m.tensors[0].shape = {int64_t{1} << 32, int64_t{1} << 32, 1};  // 0 in 64 bits
  CHECK_FALSE(m.Validate().ok());
  m.tensors[0].shape = {int64_t{1} << 40};
  CHECK_FALSE(m.Validate().ok());  // together with the other tensor
  m.tensors.pop_back();
  CHECK(m.Validate().ok());
  m.tensors[0].shape = {int64_t{1} << 20, (int64_t{1} << 20) + 1};
  CHECK_FALSE(m.Validate().ok());
  m.tensors[0].shape = std::vector<int64_t>(32, 1);
  CHECK(m.Validate().ok());
  m.tensors[0].shape.push_back(1);
  CHECK_FALSE(m.Validate().ok());
}

TEST_CASE("Aliases are names, of which a model's identity does not depend") {
  ModelSpec m = TwoTensors();
  const ModelSpec plain = m;
  m.tensors[0].aliases = {"b/weight", "c/weight"};
  CHECK(m.Validate().ok());
  CHECK(m.Hash() == plain.Hash());
  CHECK(plain.FirstDifference(m).empty());
  for (const char* taken : {"a/weight", "a/bias", "b/weight"}) {
    m.tensors[1].aliases = {taken};
    CHECK(m.Validate().message() == std::string("two tensors are named '") + taken + "'");
  }
  m.tensors[1].aliases = {""};
  CHECK(m.Validate().message() == "tensor 'a/bias' has an alias of 0 bytes; 1 to 1024 are allowed");
  m.tensors[1].aliases = {std::string(1025, 'x')};
  CHECK_FALSE(m.Validate().ok());
  for (size_t i = 0; i <= kMaxTensors; ++i) m.tensors[1].aliases.push_back(std::to_string(i));
  m.tensors[1].aliases.erase(m.tensors[1].aliases.begin());
  CHECK_FALSE(m.Validate().ok());
}

TEST_CASE("Initial values do not depend on how they are cut") {
  const TensorSpec t{"w", {1000}, TensorKind::kParameter, Initializer::HeNormal(8)};
  std::vector<float> whole(1000), parts(1000);
  FillInitialValues(7, t, 0, absl::MakeSpan(whole));
  FillInitialValues(7, t, 0, absl::MakeSpan(parts).subspan(0, 333));
  FillInitialValues(7, t, 333, absl::MakeSpan(parts).subspan(333));
  CHECK(whole == parts);
  double sum = 0, squares = 0;
  for (float v : whole) sum += v, squares += double{v} * v;
  CHECK(std::abs(sum / 1000) < 0.05);
  CHECK(squares / 1000 == Approx(0.25).epsilon(0.15));
  FillInitialValues(8, t, 0, absl::MakeSpan(parts));
  CHECK(whole != parts);
}

TEST_CASE("A model's initial values are uploaded for all tensors or for none; hashes do not tell") {
  ModelSpec zeros;
  zeros.tensors = {{"w", {2, 3}, TensorKind::kParameter, Initializer::Zeros()},
                   {"b", {3}, TensorKind::kParameter, Initializer::Zeros()}};
  ModelSpec uploaded = zeros;
  uploaded.tensors[1].init = Initializer::Uploaded();
  CHECK(
      uploaded.Validate().message() ==
      "tensor 'b': its initial values are uploaded, those of 'w' are not; a worker uploads the values of all "
      "tensors or of none");
  CHECK_FALSE(zeros.uploaded());
  uploaded.tensors[0].init = Initializer::Uploaded();
  CHECK(uploaded.Validate().ok());
  CHECK(uploaded.uploaded());
  CHECK(uploaded.Hash() == zeros.Hash());
  CHECK(zeros.FirstDifference(uploaded) == "");
  zeros.tensors[0].init.value = 1;
  CHECK(zeros.FirstDifference(uploaded) ==
        "tensor 'w': expected initial values constant(1), got constant(0)");
  std::vector<float> values(6, 9.0f);
  FillInitialValues(1, uploaded.tensors[0], 0, absl::MakeSpan(values));
  CHECK(values == std::vector<float>(6, 0.0f));
}

}  // namespace
}  // namespace weir

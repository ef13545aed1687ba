#include "common/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"

namespace weir {
namespace {

std::string ShapeString(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

const char* KindString(TensorKind kind) { return kind == TensorKind::kParameter ? "parameter" : "buffer"; }

std::string InitString(const Initializer& init) {
  const char* const names[] = {"constant", "normal", "uniform"};
  return absl::StrCat(names[static_cast<int>(init.kind)], "(", init.value, ")");
}

bool IsUploaded(const TensorSpec& tensor) { return tensor.init.kind == Initializer::Kind::kUploaded; }

// The initializer as Hash() and FirstDifference() see it.
Initializer Compared(const TensorSpec& tensor) {
  return IsUploaded(tensor) ? Initializer::Zeros() : tensor.init;
}

// FNV-1a, which is the same on every machine.
class Hasher {
 public:
  void Add(absl::string_view bytes) {
    Add(bytes.size());
    for (unsigned char c : bytes) hash_ = (hash_ ^ c) * 0x100000001b3;
  }
  void Add(uint64_t value) {
    for (int i = 0; i < 8; ++i) hash_ = (hash_ ^ ((value >> (8 * i)) & 0xff)) * 0x100000001b3;
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace

Initializer Initializer::HeNormal(int64_t fan_in) {
  return {Kind::kNormal, static_cast<float>(std::sqrt(2.0 / static_cast<double>(fan_in)))};
}

Initializer Initializer::GlorotUniform(int64_t fan_in, int64_t fan_out) {
  return {Kind::kUniform, static_cast<float>(std::sqrt(6.0 / static_cast<double>(fan_in + fan_out)))};
}

int64_t TensorSpec::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

int64_t ModelSpec::elements() const { return offset(tensors.size()); }

int64_t ModelSpec::offset(size_t tensor) const {
  int64_t n = 0;
  for (size_t i = 0; i < tensor; ++i) n += tensors[i].elements();
  return n;
}

size_t ModelSpec::TensorAt(int64_t element) const {
  size_t i = 0;
  for (int64_t end = tensors[0].elements(); element >= end; end += tensors[i].elements()) ++i;
  return i;
}

std::string ModelSpec::Describe(int64_t element) const {
  const size_t tensor = TensorAt(element);
  return absl::StrCat(tensors[tensor].name, "[", element - offset(tensor), "]");
}

bool ModelSpec::uploaded() const { return !tensors.empty() && IsUploaded(tensors[0]); }

absl::Status ModelSpec::Validate() const {
  if (tensors.empty()) return absl::InvalidArgumentError("the model has no tensors");
  if (tensors.size() > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has ", tensors.size(), " tensors; at most ", kMaxTensors, " are allowed"));
  }
  absl::flat_hash_set<std::string> names;
  for (const TensorSpec& t : tensors) {
    for (const std::string& alias : t.aliases) {
      if (alias.empty() || alias.size() > kMaxTensorName) {
        return absl::InvalidArgumentError(absl::StrCat("tensor '", t.name, "' has an alias of ", alias.size(),
                                                       " bytes; 1 to ", kMaxTensorName, " are allowed"));
      }
      if (!names.insert(alias).second) {
        return absl::InvalidArgumentError(absl::StrCat("two tensors are named '", alias, "'"));
      }
      if (names.size() > kMaxTensors) {
        return absl::InvalidArgumentError(
            absl::StrCat("the model's tensors have more than ", kMaxTensors, " aliases, which is the limit"));
      }
    }
  }
  int64_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& t = tensors[i];
    if (t.name.empty()) return absl::InvalidArgumentError(absl::StrCat("tensor ", i, " has an empty name"));
    if (t.name.size() > kMaxTensorName) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", i, " has a name of ", t.name.size(),
                                                     " bytes; at most ", kMaxTensorName, " are allowed"));
    }
    if (t.shape.size() > kMaxRank) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", t.name, "' has ", t.shape.size(),
                                                     " dimensions; at most ", kMaxRank, " are allowed"));
    }
    if (!names.insert(t.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("two tensors are named '", t.name, "'"));
    }
    int64_t elements = 1;
    for (int64_t d : t.shape) {
      if (d < 1) {
        return absl::InvalidArgumentError(absl::StrCat("tensor '", t.name, "' has shape ",
                                                       ShapeString(t.shape),
                                                       "; every dimension must be at least 1"));
      }
      // Neither this product nor the sum below overflows: both factors are within the limit.
      elements = d > kMaxElements / elements ? kMaxElements + 1 : elements * d;
      if (elements > kMaxElements) break;
    }
    if (elements > kMaxElements - total) {
      return absl::InvalidArgumentError(absl::StrCat("with tensor '", t.name, "' of shape ",
                                                     ShapeString(t.shape), " the model has more than 2^40 ",
                                                     "elements, which is the limit"));
    }
    total += elements;
    if (!std::isfinite(t.init.value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", t.name, "': its initial value is not finite"));
    }
    if (IsUploaded(t) != uploaded()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", t.name, "': its initial values are ",
                       IsUploaded(t) ? "uploaded" : "not uploaded", ", those of '", tensors[0].name, "' are",
                       uploaded() ? "" : " not", "; a worker uploads the values of all tensors or of none"));
    }
  }
  return absl::OkStatus();
}

uint64_t ModelSpec::Hash() const {
  Hasher h;
  h.Add(tensors.size());
  for (const TensorSpec& t : tensors) {
    h.Add(t.name);
    h.Add(t.shape.size());
    for (int64_t d : t.shape) h.Add(static_cast<uint64_t>(d));
    h.Add(static_cast<uint64_t>(t.kind));
    const Initializer init = Compared(t);
    h.Add(static_cast<uint64_t>(init.kind));
    uint32_t bits;
    std::memcpy(&bits, &init.value, sizeof bits);
    h.Add(bits);
  }
  return h.hash();
}

std::string ModelSpec::FirstDifference(const ModelSpec& other) const {
  const size_t common = std::min(tensors.size(), other.tensors.size());
  for (size_t i = 0; i < common; ++i) {
    const TensorSpec &a = tensors[i], &b = other.tensors[i];
    if (a.name != b.name) {
      return absl::StrCat("tensor ", i, ": expected the name '", a.name, "', got '", b.name, "'");
    }
    if (a.shape != b.shape) {
      return absl::StrCat("tensor '", a.name, "': expected shape ", ShapeString(a.shape), ", got ",
                          ShapeString(b.shape));
    }
    if (a.kind != b.kind) {
      return absl::StrCat("tensor '", a.name, "': expected kind ", KindString(a.kind), ", got ",
                          KindString(b.kind));
    }
    const Initializer expected = Compared(a), got = Compared(b);
    if (expected.kind != got.kind || expected.value != got.value) {
      return absl::StrCat("tensor '", a.name, "': expected initial values ", InitString(expected), ", got ",
                          InitString(got));
    }
  }
  if (tensors.size() != other.tensors.size()) {
    const bool more = other.tensors.size() > tensors.size();
    return absl::StrCat("expected ", tensors.size(), " tensors, got ", other.tensors.size(), "; the first ",
                        more ? "unexpected" : "missing", " one is '",
                        (more ? other : *this).tensors[common].name, "'");
  }
  return "";
}

void FillInitialValues(uint64_t seed, const TensorSpec& tensor, int64_t first, absl::Span<float> out) {
  const Initializer init = Compared(tensor);
  if (init.kind == Initializer::Kind::kConstant) {
    std::fill(out.begin(), out.end(), init.value);
    return;
  }
  const uint64_t key = RandomKey(seed, tensor.name);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto bits = Philox(key, 0, static_cast<uint64_t>(first) + i);
    if (init.kind == Initializer::Kind::kUniform) {
      out[i] = (2.0f * UniformFloat(bits[0]) - 1.0f) * init.value;
    } else {
      out[i] = static_cast<float>(TwoNormals(bits[0], bits[1])[0] * init.value);
    }
  }
}

}  // namespace weir

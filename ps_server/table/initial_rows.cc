#include "ps_server/table/initial_rows.h"

#include <algorithm>
#include <array>

#include "common/base/random.h"

namespace weir {

InitialRows::InitialRows(uint64_t seed, const std::string& table, const Initializer& init)
    : init_(init), random_key_(RandomKey(seed, "table " + table)) {}

void InitialRows::Fill(uint64_t key, float* out, size_t dim) const {
  if (init_.kind == Initializer::Kind::kConstant) {
    std::fill_n(out, dim, init_.value);
    return;
  }
  for (size_t first = 0; first < dim; first += 4) {
    const std::array<uint32_t, 4> words = Philox(random_key_, key, first / 4);
    std::array<float, 4> values;
    if (init_.kind == Initializer::Kind::kUniform) {
      for (size_t i = 0; i < 4; ++i) values[i] = (2.0f * UniformFloat(words[i]) - 1.0f) * init_.value;
    } else {
      for (size_t i = 0; i < 4; i += 2) {
        const std::array<double, 2> normals = TwoNormals(words[i], words[i + 1]);
        for (size_t k = 0; k < 2; ++k) values[i + k] = static_cast<float>(normals[k] * init_.value);
      }
    }
    std::copy_n(values.begin(), std::min<size_t>(4, dim - first), out + first);
  }
}

}  // namespace weir

#include "tests/bench/codec_table.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/codec/value_codec.h"
#include "tests/bench/timed.h"

namespace weir::bench {
namespace {

struct Row {
  std::string what;
  std::function<void()> pass;
  double best_seconds = 1e30;
};

std::vector<float> Normals(size_t n, uint64_t stream) {
  RandomStream random(RandomKey(1, "codec_table"), stream);
  std::vector<float> values(n);
  for (size_t i = 0; i + 1 < n; i += 2) {
    const auto [a, b] = TwoNormals(random.Next(), random.Next());
    values[i] = static_cast<float>(a);
    values[i + 1] = static_cast<float>(b);
  }
  return values;
}

}  // namespace

nlohmann::json CodecTable(size_t elements, int rounds) {
  const std::vector<float> gradient = Normals(elements, 0), carried = Normals(elements, 1);
  std::vector<float> to(elements);
  struct Type {
    const char* name;
    WireType type;
  };
  const Type types[] = {{"bf16", v1::BF16},
                        {"int8", v1::INT8},
                        {"int4", v1::INT4},
                        {"bit1", v1::BIT1},
                        {"topk 0.1 %", {v1::TOPK, 4}},
                        {"topk 1 %", {v1::TOPK, 41}},
                        {"topk 10 %", {v1::TOPK, 410}}};
  nlohmann::json json = nlohmann::json::array();
  for (const bool in_memory : {true, false}) {
    const size_t n = in_memory ? elements : std::min<size_t>(elements, 1 << 18);
    const size_t repeats = std::max<size_t>(1, (1 << 22) / n);
    std::vector<std::string> encoded;
    for (const Type& t : types) encoded.emplace_back(EncodedBytes(t.type, n), '\0');
    std::vector<Row> rows = {{"memcpy", [&] { std::memcpy(to.data(), gradient.data(), n * sizeof(float)); }}};
    for (size_t i = 0; i < std::size(types); ++i) {
      const WireType type = types[i].type;
      const std::string name = types[i].name;
      char* const bytes = encoded[i].data();
      if (!IsQuantised(type.dtype)) {
        rows.push_back(
            {name + ", encode", [=, &gradient] { Encode(type.dtype, gradient.data(), bytes, n); }});
        rows.push_back({name + ", decode", [=, &to] { Decode(type.dtype, bytes, to.data(), n); }});
        continue;
      }
      rows.push_back({name + ", encode", [=, &gradient] { EncodeBlocks(type, gradient.data(), bytes, n); }});
      rows.push_back({name + ", with feedback", [=, &gradient, &carried, &to] {
                        EncodeBlocksWithFeedback(type, gradient.data(), carried.data(), bytes, to.data(), n);
                      }});
      rows.push_back({name + ", decode", [=, &to] { DecodeBlocks(type, bytes, to.data(), n); }});
    }
    for (int round = 0; round < rounds; ++round) {
      for (Row& row : rows) {
        const double took = Seconds(CLOCK_THREAD_CPUTIME_ID, [&] {
          for (size_t repeat = 0; repeat < repeats; ++repeat) row.pass();
        });
        row.best_seconds = std::min(row.best_seconds, took / static_cast<double>(repeats));
      }
    }
    const char* const place = in_memory ? "memory" : "cache";
    std::printf("\ncodecs, data: %s, %zu elements, threads: 1\n", place, n);
    std::printf("%-26s %10s %8s %10s\n", "what", "ms", "GB/s", "of memcpy");
    for (const Row& row : rows) {
      const double speed = static_cast<double>(n * sizeof(float)) / row.best_seconds * 1e-9;
      const double of_memcpy = rows[0].best_seconds / row.best_seconds;
      std::printf("%-26s %10.3f %8.2f %10.2f\n", row.what.c_str(), row.best_seconds * 1e3, speed, of_memcpy);
      json.push_back({{"what", row.what},
                      {"data", place},
                      {"elements", n},
                      {"seconds", row.best_seconds},
                      {"of_memcpy", of_memcpy}});
    }
  }
  return json;
}

}  // namespace weir::bench

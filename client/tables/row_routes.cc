#include "client/tables/row_routes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/tensors/tensor_map.h"
#include "common/base/status_macros.h"
#include "common/codec/floats.h"
#include "common/codec/value_codec.h"
#include "common/protocol/job_failure.h"

namespace weir {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire's keys and floats are copied as they are");

// Sums that are checked, and converted, while they lie in the L1 cache.
constexpr size_t kValuesAtOnce = 4096;

// Rows whose places, anywhere in the caller's memory, are on their way to the cache while others are written.
constexpr uint64_t kAhead = 8;

// The positions of the entries, by table.
template <typename Entry>
std::vector<size_t> ByTable(absl::Span<const Entry> entries) {
  std::vector<size_t> order(entries.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return entries[a].table < entries[b].table; });
  return order;
}

// Names the shard's keys of a cut.
void Declare(uint32_t table, size_t keys, RowLayout::Entries* entries) {
  v1::Rows& rows = *entries->Add();
  rows.set_table(table);
  rows.set_keys(keys);
}

}  // namespace

absl::StatusOr<RowRoutes::Cut> RowRoutes::CutKeys(const std::vector<TableSpec>& tables, KeyCuts& cuts,
                                                  const char* what, uint32_t table,
                                                  absl::Span<const uint64_t> keys, size_t values) {
  if (table >= tables.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " of table ", table, ": the job's config has ", tables.size(), " tables"));
  }
  const std::string name = absl::StrCat(what, " of table '", tables[table].name, "'");
  const size_t dim = tables[table].dim;
  if (keys.size() > kMaxBatchKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", keys.size(), " keys; at most ", kMaxBatchKeys, " may come at once"));
  }
  if (values != keys.size() * dim) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", values, " values; ", keys.size(),
                                                   " keys of dim ", dim, " have ", keys.size() * dim));
  }
  return Cut{table, dim, cuts.Cut(table, keys)};
}

char* RowRoutes::WriteKeys(const Cut& cut, uint32_t shard, char* to) {
  for (uint32_t key : cut.keys->of_shard[shard]) {
    std::memcpy(to, &cut.keys->batch.keys[key], sizeof(uint64_t));
    to += sizeof(uint64_t);
  }
  return to;
}

size_t RowRoutes::WriteSums(const Cut& cut, uint32_t shard, const float* gradients, char* to) const {
  const std::vector<uint32_t>& own = cut.keys->of_shard[shard];
  const bool rounds = !IsPlain(types_.push);
  const size_t at_once = std::max<size_t>(1, kValuesAtOnce / cut.dim);
  std::vector<float> sums(rounds ? std::min(own.size(), at_once) * cut.dim : 0);
  for (size_t first = 0; first < own.size(); first += at_once) {
    const size_t rows = std::min(at_once, own.size() - first);
    const auto n = static_cast<int64_t>(rows * cut.dim);
    // A float32 is aligned there: all that lies before it is keys and other float32.
    float* const block = rounds ? sums.data() : reinterpret_cast<float*>(to);
    SumEach(cut.keys->batch, absl::MakeConstSpan(own).subspan(first, rows), gradients, cut.dim, block);
    const int64_t bad = FirstNonFinite(types_.push, block, n);
    if (bad < n) return first * cut.dim + static_cast<size_t>(bad);
    if (rounds) Encode(types_.push, block, to, static_cast<size_t>(n));
    to += n * BytesPerValue(types_.push);
  }
  return own.size() * cut.dim;
}

void RowRoutes::Refuse(const std::string& table, const Cut& cut, const float* gradients, size_t key,
                       size_t column) {
  std::vector<float> sum(cut.dim);
  SumDuplicates(cut.keys->batch.of(key), gradients, cut.dim, sum.data());
  const std::string what = absl::StrCat("the gradient of table '", table, "', key ",
                                        cut.keys->batch.keys[key], ", column ", column);
  finite_ = absl::InvalidArgumentError(
      std::isfinite(sum[column])
          ? absl::StrCat(what, " is ", sum[column], ", which bfloat16 rounds to infinity")
          : NonFiniteValue(what, sum[column]));
}

absl::StatusOr<std::shared_ptr<const RowRoutes>> RowRoutes::Create(const std::vector<TableSpec>& tables,
                                                                   KeyCuts& cuts,
                                                                   absl::Span<const RowGradients> push,
                                                                   absl::Span<const RowsToRead> pull,
                                                                   const Types& types) {
  const uint32_t shards = cuts.shards();
  std::shared_ptr<RowRoutes> routes(new RowRoutes(types));
  routes->shards_.resize(shards);
  const auto twice = [&](const char* what, uint32_t table) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " of table '", tables[table].name, "' come in two entries; give them in one"));
  };
  std::vector<std::pair<Cut, const float*>> pushed;
  for (size_t i : ByTable(push)) {
    WEIR_ASSIGN_OR_RETURN(
        Cut cut, CutKeys(tables, cuts, "gradients", push[i].table, push[i].keys, push[i].values.size()));
    if (!pushed.empty() && pushed.back().first.table == cut.table) return twice("gradients", cut.table);
    pushed.emplace_back(std::move(cut), push[i].values.data());
  }
  for (size_t i : ByTable(pull)) {
    WEIR_ASSIGN_OR_RETURN(
        Cut cut, CutKeys(tables, cuts, "rows to read", pull[i].table, pull[i].keys, pull[i].values.size()));
    if (!routes->pulled_.empty() && routes->pulled_.back().cut.table == cut.table) {
      return twice("rows to read", cut.table);
    }
    routes->pulled_.push_back({std::move(cut), pull[i].values.data()});
  }

  std::vector<uint32_t> dims;
  for (const TableSpec& table : tables) dims.push_back(table.dim);
  for (uint32_t s = 0; s < shards; ++s) {
    Shard& shard = routes->shards_[s];
    for (const auto& [cut, gradients] : pushed) {
      if (!cut.keys->of_shard[s].empty()) Declare(cut.table, cut.keys->of_shard[s].size(), &shard.push);
    }
    for (size_t i = 0; i < routes->pulled_.size(); ++i) {
      const Cut& cut = routes->pulled_[i].cut;
      if (cut.keys->of_shard[s].empty()) continue;
      Declare(cut.table, cut.keys->of_shard[s].size(), &shard.pull);
      shard.pulled.push_back(i);
    }
    WEIR_ASSIGN_OR_RETURN(const RowLayout request,
                          RowLayout::OfRequest(shard.push, types.push, shard.pull, dims));
    WEIR_ASSIGN_OR_RETURN(shard.reply, RowLayout::OfReply(shard.pull, types.pull, dims));
    shard.request_bytes = request.bytes();
    shard.pull_at = request.push().empty() ? 0 : request.push().back().end;
    // Not cleared first: all of it is written below.
    shard.request.reset(new char[shard.request_bytes]);
  }

  std::vector<char*> to;
  for (Shard& shard : routes->shards_) to.push_back(shard.request.get());
  for (const auto& [cut, gradients] : pushed) {
    // Of all shards' values that are not finite, the one of the lowest key: the same for any number of
    // shards.
    size_t bad_key = cut.keys->batch.keys.size(), bad_column = 0;
    for (uint32_t s = 0; s < shards; ++s) {
      const std::vector<uint32_t>& own = cut.keys->of_shard[s];
      to[s] = WriteKeys(cut, s, to[s]);
      const size_t bad = routes->WriteSums(cut, s, gradients, to[s]);
      if (bad < own.size() * cut.dim && own[bad / cut.dim] < bad_key) {
        bad_key = own[bad / cut.dim];
        bad_column = bad % cut.dim;
      }
      to[s] += own.size() * cut.dim * static_cast<size_t>(BytesPerValue(types.push));
    }
    if (bad_key < cut.keys->batch.keys.size() && routes->finite_.ok()) {
      routes->Refuse(tables[cut.table].name, cut, gradients, bad_key, bad_column);
    }
  }
  for (const Pulled& pulled : routes->pulled_) {
    for (uint32_t s = 0; s < shards; ++s) to[s] = WriteKeys(pulled.cut, s, to[s]);
  }
  return routes;
}

bool RowRoutes::RowEndsAt(uint32_t shard, uint64_t byte) const {
  for (const RowLayout::Entry& entry : shards_[shard].reply.pull()) {
    if (byte <= entry.end) return (byte - entry.values_at) % entry.row_bytes == 0;
  }
  return false;
}

void RowRoutes::Place(uint32_t shard, uint64_t first, uint64_t bytes,
                      absl::Span<const absl::string_view> pieces) const {
  const Shard& from = shards_[shard];
  ValueCursor values(pieces, types_.pull, static_cast<int64_t>(MostValues(types_.pull, bytes)));
  const uint64_t end = first + bytes;
  for (size_t i = 0; i < from.reply.pull().size(); ++i) {
    const RowLayout::Entry& entry = from.reply.pull()[i];
    if (entry.end <= first) continue;
    if (entry.values_at >= end) break;
    const Pulled& pulled = pulled_[from.pulled[i]];
    const size_t dim = pulled.cut.dim;
    const uint64_t row = (std::max(first, entry.values_at) - entry.values_at) / entry.row_bytes;
    const uint64_t row_end = (std::min(end, entry.end) - entry.values_at) / entry.row_bytes;
    const std::vector<uint32_t>& keys = pulled.cut.keys->of_shard[shard];
    for (uint64_t r = row; r < row_end; ++r) {
      if (r + kAhead < row_end) {
        const absl::Span<const uint32_t> next = pulled.cut.keys->batch.of(keys[r + kAhead]);
        for (uint32_t position : next.subspan(0, kAhead))
          __builtin_prefetch(pulled.values + position * dim, 1);
      }
      const absl::Span<const uint32_t> positions = pulled.cut.keys->batch.of(keys[r]);
      float* const to = pulled.values + positions[0] * dim;
      values.Read(to, static_cast<int64_t>(dim));
      // Not from the wire: memory that the shard shares may have changed.
      for (uint32_t position : positions.subspan(1)) {
        std::memcpy(pulled.values + position * dim, to, dim * sizeof(float));
      }
    }
  }
}

}  // namespace weir

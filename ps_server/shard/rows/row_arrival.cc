#include "ps_server/shard/rows/row_arrival.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/floats.h"
#include "common/codec/value_codec.h"

namespace weir {

uint64_t PushedRows::size() const {
  uint64_t size = 0;
  for (absl::string_view piece : bytes()) size += piece.size();
  return size;
}

std::vector<absl::string_view> PushedRows::bytes() const {
  std::vector<absl::string_view> bytes;
  for (const OfTable& of : tables) {
    bytes.emplace_back(reinterpret_cast<const char*>(of.keys.keys.get()), of.keys.count * sizeof(uint64_t));
    bytes.emplace_back(reinterpret_cast<const char*>(of.gradients.get()),
                       of.keys.count * of.dim * sizeof(float));
  }
  return bytes;
}

RowArrival::RowArrival(const Tables& tables, RowLayout layout, v1::Dtype dtype)
    : tables_(tables), layout_(std::move(layout)), dtype_(dtype) {
  for (const RowLayout::Entry& entry : layout_.push()) {
    const size_t i = push_.tables.size();
    sections_.push_back({Section::Kind::kPushKeys, i, entry.keys_at, entry.values_at});
    sections_.push_back({Section::Kind::kGradients, i, entry.values_at, entry.end});
    push_.tables.push_back({{entry.table, static_cast<size_t>(entry.keys), nullptr},
                            tables_[static_cast<int>(entry.table)].dim(),
                            nullptr});
    pull_begin_ = entry.end;
  }
  for (const RowLayout::Entry& entry : layout_.pull()) {
    sections_.push_back({Section::Kind::kPullKeys, pull_.size(), entry.keys_at, entry.end});
    pull_.push_back({entry.table, static_cast<size_t>(entry.keys), nullptr});
  }
}

absl::Status RowArrival::Take(uint64_t first, absl::Span<const absl::string_view> pieces, uint64_t bytes) {
  if (push_dropped_ && at_ < pull_begin_ && first == pull_begin_) {
    at_ = pull_begin_;
    while (section_ < sections_.size() && sections_[section_].end <= at_) ++section_;
  }
  if (first != at_ || bytes == 0 || bytes > layout_.bytes() - at_) {
    return absl::InvalidArgumentError(absl::StrCat("rows: a piece of ", bytes, " bytes at byte ", first,
                                                   "; the next byte is ", at_, " of ", layout_.bytes()));
  }
  uint64_t checked = at_;  // up to here
  for (absl::string_view piece : pieces) {
    while (!piece.empty()) {
      const Section& section = sections_[section_];
      if (at_ == section.begin) WEIR_RETURN_IF_ERROR(Begin(section));
      const absl::string_view part = piece.substr(0, section.end - at_);
      Copy(section, part);
      at_ += part.size();
      piece.remove_prefix(part.size());
      if (at_ < section.end) continue;
      WEIR_RETURN_IF_ERROR(Check(section, checked - section.begin));
      checked = at_;
      ++section_;
    }
  }
  return whole() || checked == at_ ? absl::OkStatus()
                                   : Check(sections_[section_], checked - sections_[section_].begin);
}

void RowArrival::DropPush() {
  push_dropped_ = true;
  push_ = {};
}

TableKeys& RowArrival::KeysOf(const Section& section) {
  return section.kind == Section::Kind::kPullKeys ? pull_[section.entry] : push_.tables[section.entry].keys;
}

absl::Status RowArrival::Begin(const Section& section) {
  if (push_dropped_ && section.kind != Section::Kind::kPullKeys) return absl::OkStatus();
  TableKeys& keys = KeysOf(section);
  const bool values = section.kind == Section::Kind::kGradients;
  const size_t count = keys.count * (values ? tables_[static_cast<int>(keys.table)].dim() : 1);
  if (values) {
    push_.tables[section.entry].gradients.reset(new (std::nothrow) float[count]);
  } else {
    keys.keys.reset(new (std::nothrow) uint64_t[count]);
  }
  if (values ? push_.tables[section.entry].gradients != nullptr : keys.keys != nullptr) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for ", keys.count, " rows of ", NameOf(keys.table)));
}

void RowArrival::Copy(const Section& section, absl::string_view bytes) {
  const uint64_t done = at_ - section.begin;
  if (section.kind != Section::Kind::kGradients) {
    if (push_dropped_ && section.kind == Section::Kind::kPushKeys) return;
    std::memcpy(reinterpret_cast<char*>(KeysOf(section).keys.get()) + done, bytes.data(), bytes.size());
    return;
  }
  if (push_dropped_) return;
  float* const gradients = push_.tables[section.entry].gradients.get();
  if (IsPlain(dtype_)) {
    std::memcpy(reinterpret_cast<char*>(gradients) + done, bytes.data(), bytes.size());
    return;
  }
  const auto value_bytes = static_cast<size_t>(BytesPerValue(dtype_));
  float* to = gradients + done / value_bytes;
  if (const size_t had = done % value_bytes; had > 0) {
    const size_t rest = std::min(value_bytes - had, bytes.size());
    std::memcpy(cut_.data() + had, bytes.data(), rest);
    bytes.remove_prefix(rest);
    if (had + rest < value_bytes) return;
    Decode(dtype_, cut_.data(), to++, 1);
  }
  const size_t whole = bytes.size() / value_bytes;
  Decode(dtype_, bytes.data(), to, whole);
  bytes.remove_prefix(whole * value_bytes);
  std::memcpy(cut_.data(), bytes.data(), bytes.size());
}

absl::Status RowArrival::Check(const Section& section, uint64_t from) {
  if (push_dropped_ && section.kind != Section::Kind::kPullKeys) return absl::OkStatus();
  const uint64_t to = at_ - section.begin;
  const TableKeys& keys = KeysOf(section);
  if (section.kind != Section::Kind::kGradients) {
    for (uint64_t i = std::max<uint64_t>(from / sizeof(uint64_t), 1); i < to / sizeof(uint64_t); ++i) {
      if (keys.keys[i - 1] < keys.keys[i]) continue;
      return absl::InvalidArgumentError(absl::StrCat(NameOf(keys.table), ": key ", keys.keys[i],
                                                     " comes after key ", keys.keys[i - 1],
                                                     "; keys must rise, each once"));
    }
    return absl::OkStatus();
  }
  if (push_.non_finite.has_value()) return absl::OkStatus();
  const auto value_bytes = static_cast<uint64_t>(BytesPerValue(dtype_));
  const uint64_t begin = from / value_bytes, count = to / value_bytes - begin;
  const float* const values = push_.tables[section.entry].gradients.get() + begin;
  const auto bad = static_cast<uint64_t>(FirstNonFinite(values, static_cast<int64_t>(count)));
  if (bad == count) return absl::OkStatus();
  const uint64_t dim = tables_[static_cast<int>(keys.table)].dim();
  push_.non_finite = {absl::StrCat("the gradient of ", NameOf(keys.table), ", key ",
                                   keys.keys[(begin + bad) / dim], ", column ", (begin + bad) % dim),
                      values[bad]};
  return absl::OkStatus();
}

uint64_t BytesOfRows(const RowArrival::Tables& tables, const v1::PushRequest& push) {
  uint64_t bytes = 0;
  for (const v1::Rows& rows : push.rows()) {
    const uint64_t dim = tables[static_cast<int>(rows.table())].dim();
    bytes += rows.keys() * (sizeof(uint64_t) + dim * sizeof(float));
  }
  return bytes;
}

absl::StatusOr<PushedRows> RowsFromBytes(const RowArrival::Tables& tables, const v1::PushRequest& push,
                                         absl::string_view bytes) {
  std::vector<uint32_t> dims;
  for (const v1::TableConfig& table : tables) dims.push_back(table.dim());
  WEIR_ASSIGN_OR_RETURN(RowLayout layout, RowLayout::OfRequest(push.rows(), v1::F32, {}, dims));
  RowArrival arrival(tables, std::move(layout), v1::F32);
  if (!bytes.empty()) WEIR_RETURN_IF_ERROR(arrival.Take(0, absl::MakeConstSpan(&bytes, 1), bytes.size()));
  if (!arrival.whole()) {
    return absl::InvalidArgumentError(absl::StrCat("rows: ", bytes.size(), " bytes of ", arrival.bytes()));
  }
  PushedRows rows = arrival.TakePush();
  if (rows.non_finite.has_value())
    return absl::InvalidArgumentError(rows.non_finite->what + " is not finite");
  return rows;
}

std::string RowArrival::NameOf(uint32_t table) const {
  return absl::StrCat("table '", tables_[static_cast<int>(table)].name(), "'");
}

}  // namespace weir

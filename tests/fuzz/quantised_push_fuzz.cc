// The chunks of a quantised push, as a client sends them and a shard keeps them. All values that arrive are
// finite, or the push says that one is not. They are the same however the bytes are cut, and on every CPU.
// The input's first byte is the length of the pieces in which messages come; the rest stands for a sequence
// of messages.
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "common/codec/value_codec.h"
#include "ps_server/exchange/exchange_request.h"
#include "ps_server/shard/calls/push_arrival.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/messages.h"

namespace weir {
namespace {

// Two blocks of top-k, and 40 values, which end in a short block of each type.
constexpr uint64_t kAll = 2 * kTopKBlockValues + 40;
constexpr uint32_t kKept = 41;  // of a block of top-k, 1 %

// The message in pieces of this many bytes, each in memory of its own, so that reading beyond one is found.
IncomingMessage InPieces(const std::string& message, size_t length) {
  auto pieces = std::make_shared<std::vector<std::unique_ptr<char[]>>>();
  IncomingMessage incoming;
  for (size_t at = 0; at < message.size(); at += length) {
    const size_t bytes = std::min(length, message.size() - at);
    std::memcpy(pieces->emplace_back(new char[bytes]).get(), message.data() + at, bytes);
    incoming.pieces.emplace_back(pieces->back().get(), bytes);
  }
  incoming.owner = std::move(pieces);
  return incoming;
}

bool SameBits(const float* one, const float* other, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    // The bits of a NaN do not matter.
    if (std::memcmp(one + i, other + i, sizeof(float)) != 0 && !(std::isnan(one[i]) && std::isnan(other[i])))
      return false;
  }
  return true;
}

// The values of these bytes, as each level of the type's codec reads them.
std::vector<std::vector<float>> Decoded(WireType type, const std::string& bytes, size_t n) {
  std::vector<std::vector<float>> all;
  const auto add = [&](const auto& decode) { decode(all.emplace_back(n).data()); };
  if (type.dtype == v1::TOPK) {
    for (const TopKLevel& level : AvailableTopKLevels()) {
      add([&](float* out) { level.decode(type.kept, bytes.data(), out, n); });
    }
    return all;
  }
  for (const BlockCodecLevel& level : AvailableBlockCodecLevels()) {
    add([&](float* out) { level.decode(CodeOf(type.dtype), bytes.data(), out, n); });
  }
  return all;
}

// The shard has those values of a chunk that each level of the codec makes of its bytes.
void CheckChunk(const ReceivedChunk& chunk, WireType type, const float* got, size_t n) {
  std::string bytes;
  for (const absl::string_view piece : chunk.pieces) bytes.append(piece.data(), piece.size());
  FuzzCheck(bytes.size() == EncodedBytes(type, n), "a chunk has the bytes of its values");
  if (!IsQuantised(type.dtype)) return;
  for (const std::vector<float>& values : Decoded(type, bytes, n)) {
    FuzzCheck(SameBits(values.data(), got, n), "the same values, however the bytes are cut");
  }
  const size_t block_values = BlockValuesOf(type.dtype);
  for (size_t block = 0; block < n; block += block_values) {
    const size_t end = std::min(n, block + block_values);
    for (size_t i = block; i < end; ++i) {
      FuzzCheck(std::isfinite(got[i]) == std::isfinite(got[block]), "a block is finite, or NaNs");
      // A code of int8 and int4 may be -128 or -8 times the scale.
      FuzzCheck(!(std::abs(got[i]) > 128 * kMostBlockValue), "no value is beyond a scale's");
    }
  }
  // A block that is skipped.
  if (n <= block_values) return;
  std::vector<float> values(n - block_values);
  ValueCursor rest(chunk.pieces, type, static_cast<int64_t>(n));
  rest.Skip(static_cast<int64_t>(block_values));
  rest.Read(values.data(), static_cast<int64_t>(values.size()));
  FuzzCheck(SameBits(values.data(), got + block_values, values.size()), "what follows a skipped block");
}

}  // namespace

// Takes it: the gradient is whole.
bool ReadInput(absl::string_view input) {
  if (input.empty()) return false;
  const size_t length = static_cast<unsigned char>(input[0]) + 1;
  const Slab slab(new float[kAll], std::default_delete<float[]>());
  std::fill_n(slab.get(), kAll, 0.0f);
  std::optional<PushArrival> arrival;
  for (const std::string& message : SplitMessages(input.substr(1))) {
    const absl::StatusOr<ReceivedRequest> read = ReadRequest(InPieces(message, length));
    if (!read.ok()) return false;
    auto [request, chunk] = *read;
    if (!FindChunk(request, nullptr, &chunk).ok() || chunk.rows) return false;
    if (!arrival.has_value()) {
      // The shard checks the number of elements itself.
      if (!CheckFirst(request, chunk).ok() || !request.has_push() || request.push().elements() != kAll)
        return false;
      arrival.emplace(request.push(), nullptr, slab, nullptr, nullptr, BlockValuesOf(request.push().dtype()));
    }
    const absl::StatusOr<uint64_t> count = arrival->TakeChunk(chunk.first, chunk.pieces, chunk.bytes);
    if (!count.ok()) return false;
    FuzzCheck(*count > 0 && *count <= kAll && chunk.first <= kAll - *count, "a chunk is within the shard");
    CheckChunk(chunk, TypeOf(arrival->header()), slab.get() + chunk.first, *count);
    const bool finite = std::all_of(slab.get(), slab.get() + kAll, [](float v) { return std::isfinite(v); });
    FuzzCheck(finite == arrival->finite(), "the push says whether all values are finite");
  }
  return arrival.has_value() && arrival->whole();
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const v1::Dtype dtype : {v1::INT8, v1::INT4, v1::BIT1, v1::TOPK, v1::BF16, v1::F32}) {
    const WireType type(dtype, dtype == v1::TOPK ? kKept : 0);
    for (const uint64_t chunk : {kAll, uint64_t{kTopKBlockValues}}) {
      std::vector<std::string> messages;
      for (uint64_t first = 0; first < kAll; first += chunk) {
        const uint64_t n = std::min(chunk, kAll - first);
        std::vector<float> values(n);
        for (uint64_t i = 0; i < n; ++i) values[i] = static_cast<float>((first + i) * 7919 % 1009) / 500 - 1;
        std::string bytes(EncodedBytes(type, n), '\0');
        if (IsQuantised(dtype)) {
          EncodeBlocks(type, values.data(), &bytes[0], n);
        } else {
          Encode(dtype, values.data(), &bytes[0], n);
        }
        v1::ExchangeRequest request;
        request.set_id(1);
        request.set_first(first);
        request.set_gradient(bytes);
        if (first == 0) {
          request.mutable_push()->set_elements(kAll);
          request.mutable_push()->set_dtype(dtype);
          request.mutable_push()->set_kept(type.kept);
        }
        messages.push_back(request.SerializeAsString());
      }
      seeds.push_back(std::string(1, static_cast<char>(chunk % 251)) + JoinMessages(messages));
    }
  }
  return seeds;
}

// Scales: 2^119, the next float32 and bfloat16, infinity, NaN, -1, the smallest.
std::vector<std::string> Words() {
  return {std::string("\0\0\0\x7b", 4),       std::string("\1\0\0\x7b", 4),
          std::string("\1\x7b", 2),           std::string("\0\0\x80\x7f", 4),
          std::string("\xff\xff\xff\xff", 4), std::string("\0\0\x80\xbf", 4),
          std::string("\1\0\0\0", 4),         "\x10\x05"};
}

}  // namespace weir

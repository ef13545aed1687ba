#include "tests/ps_server/grpc_raw_stream.h"

#include <chrono>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

grpc::ClientContext* WithDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  return context;
}

float Value(const char* bytes, v1::Dtype dtype) {
  uint32_t bits = 0;
  if (dtype == v1::BF16) {
    uint16_t upper;
    std::memcpy(&upper, bytes, sizeof(upper));
    bits = uint32_t{upper} << 16;
  } else {
    std::memcpy(&bits, bytes, sizeof(bits));
  }
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Whether the exchange has brought everything.
bool IsOver(const v1::ExchangeRequest& first, const ExchangeResult& result, uint64_t values) {
  if (first.has_push()) {
    if (!result.push.has_value()) return false;
    const v1::Outcome outcome = result.push->outcome();
    const bool pull_follows = outcome == v1::OK || outcome == v1::REFUSED || outcome == v1::DUPLICATE_BATCH;
    if (!first.has_pull() || !pull_follows) return true;
  }
  if (!result.pull.has_value()) return false;
  const bool weights = result.pull->outcome() == v1::OK && !first.pull().header_only();
  return !weights || values >= result.pull->elements();
}

}  // namespace

RawStream::RawStream(v1::ParameterServer::Stub& shard) : call_(shard.Exchange(WithDeadline(&context_))) {}

RawStream::~RawStream() {
  Cancel();
  End().IgnoreError();
}

std::optional<v1::ExchangeReply> RawStream::Read() {
  v1::ExchangeReply reply;
  if (end_.has_value() || !call_->Read(&reply)) return std::nullopt;
  return reply;
}

absl::Status RawStream::End() {
  if (end_.has_value()) return *end_;
  while (Read().has_value()) {
  }
  const grpc::Status status = call_->Finish();
  end_ = absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  return *end_;
}

ExchangeResult RawStream::Run(const std::vector<v1::ExchangeRequest>& messages, size_t written) {
  const v1::ExchangeRequest& first = messages.at(0);
  if (written == 0) Write(messages[written++]);
  const v1::Dtype dtype = first.pull().dtype();
  const uint64_t value_bytes = dtype == v1::BF16 ? 2 : 4;
  ExchangeResult result;
  std::map<uint64_t, std::string> chunks;  // by position
  uint64_t values = 0;
  while (true) {
    std::optional<v1::ExchangeReply> reply = Read();
    if (!reply.has_value()) {
      const absl::Status end = End();
      result.error = absl::Status(end.ok() ? absl::StatusCode::kUnknown : end.code(),
                                  absl::StrCat("the stream ended: ", std::string(end.message())));
      return result;
    }
    if (reply->id() != first.id()) {
      result.error = absl::InternalError("a reply to another exchange: " + reply->ShortDebugString());
      return result;
    }
    ++result.replies;
    if (reply->has_push()) result.push = reply->push();
    if (reply->has_pull()) {
      result.pull = reply->pull();
      const bool made = result.push.has_value() && result.push->outcome() == v1::OK &&
                        result.push->version().count() == result.pull->version().count();
      if (!made) {
        chunks.clear();
        values = 0;
      }
    }
    if (!reply->weights().empty()) {
      if (first.has_push() && !result.push.has_value()) ++result.eager_chunks;
      values += reply->weights().size() / value_bytes;
      chunks[reply->first()] = std::move(*reply->mutable_weights());
    }
    if (reply->has_error()) {
      result.error =
          absl::Status(static_cast<absl::StatusCode>(reply->error().code()), reply->error().message());
      return result;
    }
    for (uint32_t i = 0; i < reply->credit() && written < messages.size(); ++i) Write(messages[written++]);
    if (!IsOver(first, result, values)) continue;
    for (const auto& [position, bytes] : chunks) {
      if (position != result.weights.size()) {
        result.error = absl::InternalError(absl::StrCat("no chunk at ", result.weights.size()));
      }
      for (size_t i = 0; i < bytes.size(); i += value_bytes)
        result.weights.push_back(Value(&bytes[i], dtype));
    }
    return result;
  }
}

}  // namespace weir

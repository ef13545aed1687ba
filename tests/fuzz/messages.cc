#include "tests/fuzz/messages.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

v1::Caller Caller() {
  v1::Caller caller;
  caller.set_worker(0);
  caller.set_incarnation(kWorkerIncarnation);
  caller.set_epoch(kEpoch);
  caller.set_model_hash(ExchangedModel().Hash());
  return caller;
}

v1::PushRequest Push(uint64_t clock) {
  v1::PushRequest push;
  *push.mutable_caller() = Caller();
  push.set_clock(clock);
  push.set_examples(1);
  push.set_elements(kElements);
  push.mutable_base()->set_incarnation(kShardIncarnation);
  push.mutable_base()->set_count(clock);
  return push;
}

v1::PullRequest Pull(uint64_t clock) {
  v1::PullRequest pull;
  *pull.mutable_caller() = Caller();
  pull.set_clock(clock);
  return pull;
}

}  // namespace

ModelSpec ExchangedModel() { return {{{"w", {kElements}, TensorKind::kParameter, Initializer::Zeros()}}}; }

std::string JoinMessages(const std::vector<std::string>& messages) {
  std::string input;
  for (const std::string& message : messages) {
    input += {static_cast<char>(message.size() & 0xff), static_cast<char>(message.size() >> 8)};
    input += message;
  }
  return input;
}

std::vector<std::string> SplitMessages(absl::string_view input) {
  std::vector<std::string> messages;
  while (input.size() >= 2) {
    const size_t length = static_cast<unsigned char>(input[0]) | static_cast<unsigned char>(input[1]) << 8;
    input.remove_prefix(2);
    messages.emplace_back(input.substr(0, length));
    input.remove_prefix(std::min(length, input.size()));
  }
  return messages;
}

std::vector<v1::ExchangeRequest> Requests() {
  const std::string gradient(kElements * sizeof(float), '\0');
  std::vector<v1::ExchangeRequest> requests(6);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].set_id(i + 1);
  *requests[0].mutable_push() = Push(0);
  requests[0].set_gradient(gradient);
  *requests[1].mutable_pull() = Pull(1);
  *requests[2].mutable_push() = Push(1);
  *requests[2].mutable_pull() = Pull(2);
  requests[2].set_gradient(gradient);
  *requests[3].mutable_push() = Push(2);
  requests[3].mutable_push()->set_dtype(v1::BF16);
  requests[3].set_gradient(gradient.substr(gradient.size() / 2));
  *requests[4].mutable_push() = Push(3);
  requests[4].mutable_push()->set_refused("not finite");
  *requests[5].mutable_push() = Push(4);
  requests[5].mutable_shared()->set_bytes(gradient.size());
  return requests;
}

}  // namespace weir

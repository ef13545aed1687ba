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

google::protobuf::RepeatedPtrField<v1::TableConfig> ExchangedTables() {
  google::protobuf::RepeatedPtrField<v1::TableConfig> tables;
  for (const auto& [name, dim] : {std::pair("users", 1), std::pair("items", 3)}) {
    tables.Add()->set_name(name);
    tables.rbegin()->set_dim(dim);
  }
  return tables;
}

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
  requests[5].mutable_push()->mutable_base()->set_count(3);  // the refusal made no version
  requests[5].mutable_shared()->set_bytes(gradient.size());

  // Of the two tables, two rows and one; then the keys of the pull.
  const auto rows_of = [](uint32_t table, uint64_t keys) {
    v1::Rows rows;
    rows.set_table(table);
    rows.set_keys(keys);
    return rows;
  };
  const auto bytes_of = [](const std::vector<uint64_t>& keys, size_t values) {
    std::string bytes(reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(uint64_t));
    return bytes.append(values * sizeof(float), '\0');
  };
  const auto piece = [](uint64_t id, uint64_t first, std::string bytes) {
    v1::ExchangeRequest request;
    request.set_id(id);
    request.set_rows(true);
    request.set_first(first);
    request.set_gradient(std::move(bytes));
    return request;
  };
  v1::ExchangeRequest with_rows = piece(7, 0, bytes_of({3, 8}, 2) + bytes_of({5}, 3) + bytes_of({3, 4}, 0));
  *with_rows.mutable_push() = Push(5);
  with_rows.mutable_push()->mutable_base()->set_count(3);
  *with_rows.mutable_push()->add_rows() = rows_of(0, 2);
  *with_rows.mutable_push()->add_rows() = rows_of(1, 1);
  *with_rows.mutable_pull() = Pull(6);
  *with_rows.mutable_pull()->add_rows() = rows_of(0, 2);
  requests.push_back(with_rows);
  v1::ExchangeRequest dense;
  dense.set_id(7);
  dense.set_gradient(gradient);
  requests.push_back(dense);
  v1::ExchangeRequest pull = piece(8, 0, bytes_of({1}, 0));
  *pull.mutable_pull() = Pull(6);
  pull.mutable_pull()->set_header_only(true);
  *pull.mutable_pull()->add_rows() = rows_of(1, 2);
  requests.push_back(pull);
  requests.push_back(piece(8, 8, bytes_of({2}, 0)));
  return requests;
}

}  // namespace weir

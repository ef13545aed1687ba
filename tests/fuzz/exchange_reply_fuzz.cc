// What a shard sends on a client's stream. The input stands for a sequence of messages, which answer a pull
// (exchange 1), a push with its pull (2), a push (3), and a pull of rows (4).
#include <atomic>

#include "client/exchange/exchange_stream.h"
#include "client/tables/key_cuts.h"
#include "client/tables/row_routes.h"
#include "tests/client/manual_channel.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/messages.h"

namespace weir {
namespace {

// Shared memory with one segment of the shard, as long as the weights.
class OneSegment final : public ShardMemory {
 public:
  std::string token() const override { return "token"; }
  uint32_t slots() const override { return 1; }
  char* SlotData(uint32_t) override { return slot_; }
  uint64_t SlotOffset(uint32_t) const override { return 0; }
  std::optional<uint32_t> NumberOf(const std::shared_ptr<const SharedSegment>&) override {
    return std::nullopt;
  }
  absl::StatusOr<const char*> Map(uint32_t segment, uint64_t offset, uint64_t bytes) override {
    if (segment != 0 || offset > sizeof weights_ || bytes > sizeof weights_ - offset) {
      return absl::OutOfRangeError("beyond the segment");
    }
    return weights_ + offset;
  }

 private:
  char slot_[kElements * sizeof(float)] = {};
  const char weights_[kElements * sizeof(float)] = {};
};

constexpr float kUntouched = 7;

struct Client {
  explicit Client(bool shares) : channel(loop, shares ? std::make_shared<OneSegment>() : nullptr, true) {
    wire.shared_memory = shares;
    stream->Start(channel, [] {});
    ShardPull pull;
    pull.tensors = {pulled[0].data()};
    Add("Pull", std::nullopt, pull);
    pull.tensors = {pulled[1].data()};
    Add("PushPull", Push(0), pull);
    Add("Push", Push(1), std::nullopt);
    ShardPull alone;
    alone.request.set_header_only(true);
    Add("PullRows", std::nullopt, alone, Routes());
    loop.Run();
  }
  ~Client() {
    stream->Cancel();
    loop.Run();
    FuzzCheck(ended == 4, "each exchange ends, once");
  }

  // Of one table one row, of the other one twice.
  std::shared_ptr<const RowRoutes> Routes() {
    const auto tables = ExchangedTables();
    const std::vector<TableSpec> specs = {{tables[0].name(), tables[0].dim()},
                                          {tables[1].name(), tables[1].dim()}};
    static constexpr uint64_t kKeys[] = {5, 7, 5};
    KeyCuts cuts(specs.size(), 1);
    return RowRoutes::Create(
               specs, cuts, {},
               std::vector<RowsToRead>{{0, absl::MakeConstSpan(kKeys, 1), absl::MakeSpan(users)},
                                       {1, absl::MakeConstSpan(kKeys, 3), absl::MakeSpan(items)}},
               {})
        .value();
  }

  ShardPush Push(uint64_t clock) {
    ShardPush push;
    push.header.set_clock(clock);
    push.header.set_elements(kElements);
    push.gradient =
        OutgoingGradient::Create({}, tensors, {v1::F32, {gradient.data()}}, wire, nullptr).value();
    return push;
  }
  void Add(const char* what, std::optional<ShardPush> push, std::optional<ShardPull> pull,
           std::shared_ptr<const RowRoutes> rows = nullptr) {
    exchanges.push_back(std::make_shared<ShardExchange>(tensors, 0, wire, what, std::move(push),
                                                        std::move(pull), answered_clock, std::move(rows)));
    FuzzCheck(stream->Add(exchanges.back(),
                          [this](const absl::StatusOr<ShardExchange::Progress>& how) {
                            ++ended;
                            complete = complete || (how.ok() && *how == ShardExchange::Progress::kComplete);
                          }),
              "a new stream takes exchanges");
  }

  ManualLoop loop;
  TestChannel channel;
  WireOptions wire;
  const TensorMap tensors{ExchangedModel(), 1};
  std::vector<float> gradient = std::vector<float>(kElements, 1);
  // What is pulled, each exactly as long as the model.
  std::vector<std::vector<float>> pulled = {std::vector<float>(kElements, kUntouched),
                                            std::vector<float>(kElements, kUntouched)};
  // Each exactly as long as its rows.
  std::vector<float> users = std::vector<float>(1), items = std::vector<float>(9);
  std::atomic<uint64_t> answered_clock = 0;
  std::vector<std::shared_ptr<ShardExchange>> exchanges;
  int ended = 0;
  bool complete = false;
  const std::shared_ptr<ExchangeStream> stream =
      std::make_shared<ExchangeStream>(loop, [] { return v1::Caller(); });
};

}  // namespace

// Takes it: an exchange was completed. The first byte says whether memory is shared.
bool ReadInput(absl::string_view input) {
  if (input.empty()) return false;
  Client client((input[0] & 1) != 0);
  for (const std::string& message : SplitMessages(input.substr(1))) {
    if (!client.channel.stream->Deliver(message)) break;
  }
  return client.complete;
}

std::vector<std::string> Seeds() {
  v1::ExchangeReply granted, pulled, credit, pushed, half, both;
  granted.mutable_shared_memory()->set_granted(true);
  pulled.set_id(1);
  pulled.mutable_pull()->set_outcome(v1::OK);
  pulled.mutable_pull()->set_elements(kElements);
  pulled.mutable_pull()->mutable_version()->set_incarnation(kShardIncarnation);
  both = pulled;
  both.set_id(2);
  both.mutable_push()->set_outcome(v1::OK);
  *both.mutable_push()->mutable_version() = both.pull().version();
  pushed.set_id(3);
  pushed.set_credit(2);
  pushed.mutable_push()->set_outcome(v1::OK);
  v1::ExchangeReply in_place = pulled;
  in_place.mutable_shared()->set_bytes(kElements * sizeof(float));
  const std::string weights(kElements * sizeof(float), '\0');
  pulled.set_weights(weights);
  both.set_weights(weights);
  v1::ExchangeReply rows, more_rows;
  rows.set_id(4);
  *rows.mutable_pull() = pulled.pull();
  rows.set_rows(true);
  rows.set_weights(std::string(4 * sizeof(float), '\0'));
  more_rows.set_id(4);
  more_rows.set_rows(true);
  more_rows.set_first(4 * sizeof(float));
  more_rows.set_weights(std::string(3 * sizeof(float), '\0'));
  v1::ExchangeReply error;
  error.set_id(3);
  error.mutable_error()->set_code(14);
  error.mutable_error()->set_message("not now");
  return {
      "0" + JoinMessages({pulled.SerializeAsString(), both.SerializeAsString(), pushed.SerializeAsString()}),
      "1" + JoinMessages(
                {granted.SerializeAsString(), in_place.SerializeAsString(), error.SerializeAsString()}),
      "0" + JoinMessages({rows.SerializeAsString(), more_rows.SerializeAsString()})};
}

std::vector<std::string> Words() {
  return {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x7a", "\x08\x02", "\x08\x03"};
}

}  // namespace weir

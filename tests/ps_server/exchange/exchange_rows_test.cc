// Rows of embedding tables in a session's exchanges, with a real shard and no channel.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/floats.h"
#include "common/codec/value_codec.h"
#include "common/model/key_bucket.h"
#include "ps_server/exchange/exchange_session.h"
#include "tests/common/task_queue.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// One segment of a client, as large as the test makes it, and those that the server has made for rows.
class Segment final : public ClientSegments, public SharedMemory {
 public:
  absl::StatusOr<const char*> At(uint32_t segment, uint64_t offset, uint64_t bytes) const override {
    if (segment != 0 || offset + bytes > memory.size()) return absl::OutOfRangeError("beyond it");
    return memory.data() + offset;
  }
  std::optional<Place> Find(const void* data) const override {
    const char* const at = static_cast<const char*>(data);
    for (uint32_t i = 0; i < made.size(); ++i) {
      if (at >= made[i] && at < made[i] + kMade) return Place{i, static_cast<uint64_t>(at - made[i])};
    }
    return std::nullopt;
  }
  std::shared_ptr<const ClientSegments> Claim(absl::string_view) const override {
    return {std::shared_ptr<const void>(), this};
  }
  void KeepFor(absl::string_view, std::vector<std::shared_ptr<const void>>) override {}
  // Memory for a shard's weights and rows, of which clients can read what is as large as memory for rows.
  std::shared_ptr<float> Make(size_t values) {
    const std::shared_ptr<float> slab = AllocateSlab(values);
    if (values * sizeof(float) == kMade) made.push_back(reinterpret_cast<const char*>(slab.get()));
    return slab;
  }

  static constexpr size_t kMade = 1 << 20;
  std::string memory;
  std::vector<const char*> made;
};

// Table 0, "users", has 2 columns, SGD at rate 1 and initial values of 5; table 1, "wide", has 40 columns.
struct RowsFixture {
  explicit RowsFixture(v1::ConsistencyConfig::Mode mode = v1::ConsistencyConfig::MODE_ASYNC) : shard(mode) {
    for (const auto& [name, dim] : {std::pair("users", 2), std::pair("wide", 40)}) {
      v1::TableConfig& table = *shard.config.add_tables();
      table.set_name(name);
      table.set_dim(dim);
      table.mutable_init()->set_type(v1::TableInit::KIND_CONSTANT);
      table.mutable_init()->set_value(5);
      table.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_SGD);
      table.mutable_optimizer()->set_learning_rate(1);
    }
  }
  ~RowsFixture() {
    if (session != nullptr) session->End();
    Run();
  }
  void Start(uint32_t chunks_in_flight = 2) {
    shard.weights_source = [this](size_t values) { return segment.Make(values); };
    shard.Start();
    ExchangeSession::Options options;
    options.shard = shard.shard.get();
    options.executor = &tasks;
    options.id = ShardFixture::kSession;
    options.admit = [](const v1::Caller&, bool) { return absl::OkStatus(); };
    options.chunk_elements = 16;
    options.chunks_in_flight = chunks_in_flight;
    options.shared_memory = &segment;
    options.limits = &limits;
    options.arriving_rows = arriving_rows;
    options.asked_rows = asked_rows;
    session = std::make_shared<ExchangeSession>(options, [] {});
  }

  // Until neither the shard nor the session has anything to do.
  void Run() {
    for (int i = 0; i < 4; ++i) {
      shard.Settle();
      tasks.Run();
    }
  }
  absl::Status TryReceive(const v1::ExchangeRequest& request) {
    const auto bytes = std::make_shared<const std::string>(request.SerializeAsString());
    const absl::Status status = session->Receive({{*bytes}, bytes});
    Run();
    return status;
  }
  void Receive(const v1::ExchangeRequest& request) { REQUIRE(TryReceive(request).ok()); }

  // The first message of an exchange with a push and with a pull of these.
  v1::ExchangeRequest First(uint64_t id, std::optional<TestPush> push, const std::vector<TestRows>& pushed,
                            bool pulls, const std::vector<TestRows>& pulled, v1::Dtype dtype = v1::F32) {
    v1::ExchangeRequest request;
    request.set_id(id);
    if (push.has_value()) {
      *request.mutable_push() = shard.Header(*push);
      request.mutable_push()->set_dtype(dtype);
      Declare(pushed, request.mutable_push()->mutable_rows());
    }
    if (pulls) {
      *request.mutable_pull()->mutable_caller() = shard.CallerOf(0);
      request.mutable_pull()->set_clock(push.has_value() ? push->clock + 1 : 0);
      request.mutable_pull()->set_header_only(true);
      request.mutable_pull()->set_dtype(dtype);
      Declare(pulled, request.mutable_pull()->mutable_rows());
    }
    return request;
  }
  static void Declare(const std::vector<TestRows>& rows, RowLayout::Entries* out) {
    for (const TestRows& of : rows) {
      v1::Rows& entry = *out->Add();
      entry.set_table(of.table);
      entry.set_keys(of.keys.size());
    }
  }
  static std::string Bytes(const std::vector<TestRows>& pushed, const std::vector<TestRows>& pulled,
                           v1::Dtype dtype = v1::F32) {
    std::string bytes;
    const auto append = [&](const auto& values) {
      bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]);
    };
    for (const TestRows& of : pushed) {
      append(of.keys);
      if (dtype == v1::BF16) {
        std::vector<uint16_t> rounded(of.values.size());
        ToBfloat16(of.values.data(), rounded.data(), rounded.size());
        append(rounded);
      } else {
        append(of.values);
      }
    }
    for (const TestRows& of : pulled) append(of.keys);
    return bytes;
  }
  static v1::ExchangeRequest Piece(uint64_t id, uint64_t first, const std::string& bytes) {
    v1::ExchangeRequest request;
    request.set_id(id);
    request.set_rows(true);
    request.set_first(first);
    request.set_gradient(bytes);
    return request;
  }
  v1::ExchangeRequest Dense(uint64_t id, v1::Dtype dtype = v1::F32) const {
    v1::ExchangeRequest request;
    request.set_id(id);
    const std::vector<float> gradient(40, 1.0f);
    std::string bytes(40 * static_cast<size_t>(BytesPerValue(dtype)), '\0');
    if (dtype == v1::BF16) {
      ToBfloat16(gradient.data(), bytes.data(), gradient.size());
    } else {
      std::memcpy(bytes.data(), gradient.data(), bytes.size());
    }
    request.set_gradient(bytes);
    return request;
  }

  // What one exchange got. Fails the test if its rows come out of order, or in pieces that are cut through a
  // row or too long.
  struct Got {
    uint32_t credit = 0;
    std::optional<v1::PushReply> push;
    std::optional<v1::PullReply> pull;
    std::optional<v1::Error> error;
    std::vector<size_t> pieces;  // bytes
    std::string rows;
    std::vector<float> values(v1::Dtype dtype = v1::F32) const {
      std::vector<float> out(rows.size() / static_cast<size_t>(BytesPerValue(dtype)));
      if (dtype == v1::BF16) {
        FromBfloat16(rows.data(), out.data(), out.size());
      } else {
        std::memcpy(out.data(), rows.data(), rows.size());
      }
      return out;
    }
  };
  const Got& Send(uint64_t id) {
    Run();
    OutgoingMessage message;
    while (session->Send(&message)) {
      std::string bytes = message.head;
      for (const auto& piece : message.payload) bytes.append(piece.bytes.data(), piece.bytes.size());
      session->Sent();
      v1::ExchangeReply reply;
      REQUIRE(reply.ParseFromString(bytes));
      Got& of = got[reply.id()];
      of.credit += reply.credit();
      if (reply.has_push()) of.push = reply.push();
      if (reply.has_pull()) of.pull = reply.pull();
      if (reply.has_error()) of.error = reply.error();
      if (!reply.rows()) {
        CHECK(reply.weights().empty());
        continue;
      }
      CHECK(reply.first() == of.rows.size());
      of.pieces.push_back(reply.weights().size());
      of.rows += reply.weights();
      Run();
    }
    return got[id];
  }

  ShardFixture shard;
  TaskQueue tasks;
  Segment segment;
  LimitCounters limits;
  // Of all streams; null: any number.
  ByteBudget *arriving_rows = nullptr, *asked_rows = nullptr;
  std::map<uint64_t, Got> got;
  std::shared_ptr<ExchangeSession> session;
};

const std::vector<TestRows> kPushed = {{0, {7, 9}, {1, 2, 3, 4}}};
const std::vector<TestRows> kPulled = {{0, {7, 8, 9}, {}}};
const std::vector<float> kAfter = {4, 3, 5, 5, 2, 1};

TEST_CASE("An exchange pushes rows and pulls those of the version that it makes, in either type of values") {
  const auto dtype = GENERATE(v1::F32, v1::BF16);
  const bool rows_first = GENERATE(true, false);
  RowsFixture f;
  f.Start();
  v1::ExchangeRequest first = f.First(1, TestPush{}, kPushed, true, kPulled, dtype);
  v1::ExchangeRequest piece = f.Piece(1, 0, f.Bytes(kPushed, kPulled, dtype));
  v1::ExchangeRequest dense = f.Dense(1, dtype);
  first.MergeFrom(rows_first ? piece : dense);
  f.Receive(first);
  CHECK(f.Send(1).credit >= 1);
  CHECK_FALSE(f.Send(1).push.has_value());
  f.Receive(rows_first ? dense : piece);
  const auto& got = f.Send(1);
  REQUIRE(got.push.has_value());
  CHECK(got.push->outcome() == v1::OK);
  REQUIRE(got.pull.has_value());
  CHECK(got.pull->version().count() == 1);
  CHECK(got.values(dtype) == kAfter);
  CHECK(f.session->idle());
}

TEST_CASE("Pieces of rows share the credit with the chunks, and may be cut anywhere") {
  const uint64_t length = GENERATE(1, 5, 8);
  RowsFixture f;
  f.Start();
  f.Receive(f.First(1, TestPush{}, kPushed, true, kPulled));
  CHECK(f.Send(1).credit == 2);
  const std::string bytes = f.Bytes(kPushed, kPulled);
  uint32_t sent = 0;
  for (uint64_t at = 0; at < bytes.size(); at += length) {
    REQUIRE(f.Send(1).credit > sent++);
    f.Receive(f.Piece(1, at, bytes.substr(at, length)));
    if (sent != 3) continue;
    REQUIRE(f.Send(1).credit > sent++);
    f.Receive(f.Dense(1));
  }
  CHECK(f.Send(1).push->outcome() == v1::OK);
  CHECK(f.Send(1).values() == kAfter);
}

TEST_CASE("A pull alone sends its keys in several pieces, with weights or without, newest or pinned") {
  const bool pinned = GENERATE(true, false);
  RowsFixture f;
  f.Start();
  f.shard.Pin(3, 100);
  REQUIRE(f.shard.PushRows({0, 0}, kPushed)->reply().outcome() == v1::OK);
  v1::ExchangeRequest first = f.First(1, std::nullopt, {}, true, kPulled);
  if (pinned) first.mutable_pull()->set_pin(3);
  const std::string bytes = f.Bytes({}, kPulled);
  first.MergeFrom(f.Piece(1, 0, bytes.substr(0, 10)));
  f.Receive(first);
  CHECK(f.Send(1).credit == 2);
  f.Receive(f.Piece(1, 10, bytes.substr(10, 6)));
  CHECK_FALSE(f.Send(1).pull.has_value());
  f.Receive(f.Piece(1, 16, bytes.substr(16)));
  const auto& got = f.Send(1);
  REQUIRE(got.pull.has_value());
  CHECK(got.pull->outcome() == v1::OK);
  CHECK(got.pull->version().count() == (pinned ? 0 : 1));
  CHECK(got.values() == (pinned ? std::vector<float>(6, 5) : kAfter));
  CHECK(f.session->idle());
}

TEST_CASE("Rows come beside the weights of a pull") {
  RowsFixture f;
  f.Start();
  v1::ExchangeRequest first = f.First(1, std::nullopt, {}, true, kPulled);
  first.mutable_pull()->set_header_only(false);
  first.MergeFrom(f.Piece(1, 0, f.Bytes({}, kPulled)));
  f.Receive(first);
  OutgoingMessage message;
  size_t weights = 0, rows = 0;
  while (f.session->Send(&message)) {
    std::string bytes = message.head;
    for (const auto& piece : message.payload) bytes.append(piece.bytes.data(), piece.bytes.size());
    f.session->Sent();
    v1::ExchangeReply reply;
    REQUIRE(reply.ParseFromString(bytes));
    (reply.rows() ? rows : weights) += reply.weights().size();
  }
  CHECK(weights == 40 * sizeof(float));
  CHECK(rows == 6 * sizeof(float));
  CHECK(f.session->idle());
}

TEST_CASE("The rows of a reply come in pieces of whole rows, at most a chunk long if a row is not longer") {
  const auto dtype = GENERATE(v1::F32, v1::BF16);
  RowsFixture f;
  f.Start();
  const std::vector<TestRows> pulled = {{0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {}}, {1, {1, 2}, {}}};
  v1::ExchangeRequest first = f.First(1, std::nullopt, {}, true, pulled, dtype);
  first.MergeFrom(f.Piece(1, 0, f.Bytes({}, pulled)));
  f.Receive(first);
  const auto& got = f.Send(1);
  const size_t value = static_cast<size_t>(BytesPerValue(dtype));
  CHECK(got.pieces == std::vector<size_t>{16 * value, 4 * value, 40 * value, 40 * value});
  CHECK(got.values(dtype) == std::vector<float>(100, 5));
}

TEST_CASE("Pieces of rows may lie in the client's shared memory") {
  RowsFixture f;
  f.Start();
  v1::ExchangeRequest greeting;
  greeting.mutable_shared_memory()->set_token("token");
  f.Receive(greeting);
  f.segment.memory = "........" + f.Bytes(kPushed, kPulled);
  f.Receive(f.First(1, TestPush{}, kPushed, true, kPulled));
  v1::ExchangeRequest piece;
  piece.set_id(1);
  piece.set_rows(true);
  piece.mutable_shared()->set_offset(8);
  piece.mutable_shared()->set_bytes(f.segment.memory.size() - 8);
  f.Receive(piece);
  f.Receive(f.Dense(1));
  CHECK(f.Send(1).push->outcome() == v1::OK);
  CHECK(f.Send(1).values() == kAfter);
}

TEST_CASE(
    "The rows of a large answer are read where they lie; their memory is used again once they were read") {
  RowsFixture f;
  f.Start();
  v1::ExchangeRequest greeting;
  greeting.mutable_shared_memory()->set_token("token");
  f.Receive(greeting);
  std::vector<TestRows> pulled = {{1, {}, {}}};
  for (uint64_t key = 0; key < 500; ++key) pulled[0].keys.push_back(key);
  const auto pull = [&](uint64_t id, v1::Dtype dtype) {
    v1::ExchangeRequest first = f.First(id, std::nullopt, {}, true, pulled, dtype);
    first.MergeFrom(f.Piece(id, 0, f.Bytes({}, pulled)));
    f.Receive(first);
    std::vector<v1::ExchangeReply> replies;
    OutgoingMessage message;
    while (f.session->Send(&message)) {
      std::string bytes = message.head;
      for (const auto& piece : message.payload) bytes.append(piece.bytes.data(), piece.bytes.size());
      f.session->Sent();
      REQUIRE(replies.emplace_back().ParseFromString(bytes));
      if (!replies.back().rows()) replies.pop_back();
    }
    return replies;
  };
  // One message says where all of them lie.
  for (uint64_t id = 1; id <= 2; ++id) {
    const std::vector<v1::ExchangeReply> replies = pull(id, v1::F32);
    REQUIRE(replies.size() == 1);
    CHECK(replies[0].weights().empty());
    CHECK(replies[0].first() == 0);
    const v1::SharedRange& range = replies[0].shared();
    CHECK(range.segment() == id - 1);  // the first answer is still being read
    REQUIRE(range.bytes() == 500 * 40 * sizeof(float));
    std::vector<float> values(500 * 40);
    std::memcpy(values.data(), f.segment.made[range.segment()] + range.offset(), range.bytes());
    CHECK(values == std::vector<float>(500 * 40, 5));
  }
  v1::ExchangeRequest released;
  released.set_released(2);
  f.Receive(released);
  for (uint64_t id = 3; id <= 4; ++id) CHECK(pull(id, v1::F32).size() == 1);
  CHECK(f.segment.made.size() == 2);
  // They are float32 there, so bfloat16 travels in messages, as before.
  const std::vector<v1::ExchangeReply> rounded = pull(5, v1::BF16);
  CHECK(rounded.size() == 500);
  for (const v1::ExchangeReply& reply : rounded) CHECK_FALSE(reply.has_shared());
}

TEST_CASE("A push that is answered from the record takes no rows, but its pull still reads") {
  const bool skips = GENERATE(true, false);
  const uint64_t before = GENERATE(0, 10);  // bytes of rows that came with the first message
  RowsFixture f;
  f.Start();
  REQUIRE(f.shard.PushRows({0, 0}, kPushed)->reply().outcome() == v1::OK);
  v1::ExchangeRequest first = f.First(1, TestPush{}, kPushed, true, kPulled);
  const std::string bytes = f.Bytes(kPushed, kPulled);
  const uint64_t pull_begin = f.Bytes(kPushed, {}).size();
  if (before > 0) first.MergeFrom(f.Piece(1, 0, bytes.substr(0, before)));
  f.Receive(first);
  CHECK(f.Send(1).push->outcome() == v1::OK);
  CHECK(f.Send(1).credit == 2);
  const uint64_t from = skips ? pull_begin : before;
  f.Receive(f.Piece(1, from, bytes.substr(from)));
  CHECK(f.Send(1).values() == kAfter);  // applied once
  CHECK(f.session->idle());
}

TEST_CASE("A refused push has no rows, and its pull sends its keys") {
  RowsFixture f;
  f.Start();
  v1::ExchangeRequest first = f.First(1, TestPush{}, {}, true, kPulled);
  first.mutable_push()->set_refused("the gradient of table 'users', key 7, column 0 is NaN");
  f.Receive(first);
  CHECK(f.Send(1).push->outcome() == v1::REFUSED);
  f.Receive(f.Piece(1, 0, f.Bytes({}, kPulled)));
  CHECK(f.Send(1).values() == std::vector<float>(6, 5));
}

TEST_CASE("A row that is not finite refuses the push, and the pull follows") {
  RowsFixture f;
  f.Start();
  const std::vector<TestRows> pushed = {{0, {7, 9}, {1, 2, 3, kNaN}}};
  v1::ExchangeRequest first = f.First(1, TestPush{}, pushed, true, kPulled);
  first.MergeFrom(f.Piece(1, 0, f.Bytes(pushed, kPulled)));
  f.Receive(first);
  f.Receive(f.Dense(1));
  CHECK(f.Send(1).push->outcome() == v1::REFUSED);
  CHECK_THAT(f.Send(1).push->reason(),
             Catch::Contains("the gradient of table 'users', key 9, column 1 is NaN"));
  CHECK(f.Send(1).values() == std::vector<float>(6, 5));
}

TEST_CASE("Malformed rows end their exchange, say what is wrong and leave no trace") {
  struct Case {
    std::vector<TestRows> pushed, pulled;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{{2, {7}, {1, 1}}}, {}, "push.rows[0].table: 2; the job has 2 tables"},
      {{{1, {7}, std::vector<float>(40)}, {0, {7}, {1, 1}}}, {}, "tables must rise"},
      {{{0, {}, {}}}, {}, "push.rows[0].keys: 0"},
      {{}, {{0, {}, {}}}, "pull.rows[0].keys: 0"},
      {{{0, {9, 7}, {1, 1, 1, 1}}}, {}, "table 'users': key 7 comes after key 9"},
      {{}, {{0, {7, 7}, {}}}, "table 'users': key 7 comes after key 7"},
  };
  for (const Case& c : cases) {
    INFO(c.error);
    RowsFixture f;
    f.Start();
    const bool pushes = !c.pushed.empty();
    f.Receive(f.First(1, pushes ? std::optional(TestPush{}) : std::nullopt, c.pushed, !pushes, c.pulled));
    if (!f.Send(1).error.has_value()) {
      f.Receive(f.Piece(1, 0, f.Bytes(c.pushed, c.pulled)));
      if (pushes && !f.Send(1).error.has_value()) f.Receive(f.Dense(1));
    }
    REQUIRE(f.Send(1).error.has_value());
    CHECK(f.Send(1).error->code() == static_cast<int>(absl::StatusCode::kInvalidArgument));
    CHECK_THAT(f.Send(1).error->message(), Catch::Contains(c.error));
    CHECK(f.shard.shard->counters().version == 0);
    CHECK(f.session->idle());
  }
}

TEST_CASE("Pieces that do not fit end their exchange") {
  RowsFixture f;
  f.Start();
  const std::string bytes = f.Bytes(kPushed, kPulled);
  const auto error = [&](uint64_t id, const v1::ExchangeRequest& request) {
    f.Receive(request);
    const auto& got = f.Send(id);
    REQUIRE(got.error.has_value());
    CHECK(got.error->code() == static_cast<int>(absl::StatusCode::kInvalidArgument));
    return got.error->message();
  };
  f.Receive(f.First(1, TestPush{}, kPushed, true, kPulled));
  CHECK(error(1, f.Piece(1, 8, bytes)) == "rows: a piece of 56 bytes at byte 8; the next byte is 0 of 56");
  f.Receive(f.First(2, TestPush{}, kPushed, true, kPulled));
  CHECK_THAT(error(2, f.Piece(2, 0, bytes + "x")), Catch::Contains("a piece of 57 bytes"));
  f.Receive(f.First(3, TestPush{}, kPushed, true, kPulled));
  f.Receive(f.Piece(3, 0, bytes));
  CHECK_THAT(error(3, f.Piece(3, 56, "x")), Catch::Contains("a piece of 1 bytes at byte 56"));
  f.Receive(f.First(4, TestPush{}, {}, false, {}));
  CHECK(error(4, f.Piece(4, 0, bytes)) == "rows: a piece after all rows of the exchange");
  v1::ExchangeRequest undeclared = f.First(5, TestPush{}, {}, false, {});
  undeclared.MergeFrom(f.Piece(5, 0, bytes));
  CHECK(error(5, undeclared) == "rows: neither push.rows nor pull.rows says that any come");
  f.Receive(f.First(6, std::nullopt, {}, true, kPulled));
  CHECK(error(6, f.Dense(6)) == "gradient: only the keys of the pull are missing");
  v1::ExchangeRequest refused = f.First(7, TestPush{}, kPushed, false, {});
  refused.mutable_push()->set_refused("a NaN");
  CHECK(error(7, refused) == "push.rows: with push.refused, which says that none come");
  CHECK(f.shard.shard->counters().version == 0);
  CHECK(f.session->idle());
}

TEST_CASE("Keys of another shard are malformed input") {
  RowsFixture f;
  f.shard.install.set_num_shards(2);
  f.Start();
  uint64_t other = 1;
  while (BucketOfHash(HashKey(other)) % 2 != 1) ++other;
  const std::vector<TestRows> pushed = {{0, {other}, {1, 1}}}, pulled = {{0, {other}, {}}};
  v1::ExchangeRequest first = f.First(1, TestPush{}, pushed, false, {});
  first.MergeFrom(f.Piece(1, 0, f.Bytes(pushed, {})));
  f.Receive(first);
  v1::ExchangeRequest dense = f.Dense(1);
  dense.mutable_gradient()->resize(static_cast<size_t>(f.shard.shard->elements()) * sizeof(float));
  f.Receive(dense);
  REQUIRE(f.Send(1).error.has_value());
  CHECK_THAT(f.Send(1).error->message(), Catch::Contains("which is of shard 1 of 2, not 0"));
  first = f.First(2, std::nullopt, {}, true, pulled);
  first.MergeFrom(f.Piece(2, 0, f.Bytes({}, pulled)));
  f.Receive(first);
  REQUIRE(f.Send(2).error.has_value());
  CHECK_THAT(f.Send(2).error->message(), Catch::Contains("which is of shard 1 of 2, not 0"));
}

TEST_CASE("A job without tables takes no rows") {
  RowsFixture f;
  f.shard.config.clear_tables();
  f.Start();
  f.Receive(f.First(1, TestPush{}, kPushed, false, {}));
  REQUIRE(f.Send(1).error.has_value());
  CHECK(f.Send(1).error->message() == "push.rows[0].table: 0; the job has 0 tables");
}

TEST_CASE("An exchange whose rows are on their way ends with the client's input, and with the job") {
  RowsFixture f;
  f.Start();
  f.Receive(f.First(1, TestPush{}, kPushed, true, kPulled));
  f.Receive(f.First(2, std::nullopt, {}, true, kPulled));
  f.Receive(f.Piece(2, 0, f.Bytes({}, kPulled).substr(0, 8)));
  SECTION("input") {
    f.session->EndInput();
    CHECK(f.Send(1).error->message() ==
          "the stream ended after 0 of 40 elements of the push's gradient and 0 of 56 bytes of its rows");
    CHECK(f.Send(2).error->message() == "the stream ended after 8 of 24 bytes of its rows");
  }
  SECTION("job") {
    f.session->EndJob(absl::OkStatus());
    CHECK(f.Send(1).push->outcome() == v1::JOB_OVER);
    CHECK(f.Send(2).pull->outcome() == v1::JOB_OVER);
  }
  CHECK(f.session->idle());
}

TEST_CASE("sync: rows of a part wait for the commit, and its pull for the rows") {
  RowsFixture f(v1::ConsistencyConfig::MODE_SYNC);
  f.Start();
  v1::ExchangeRequest first = f.First(1, TestPush{}, kPushed, true, kPulled);
  first.MergeFrom(f.Piece(1, 0, f.Bytes(kPushed, kPulled)));
  f.Receive(first);
  f.Receive(f.Dense(1));
  CHECK_FALSE(f.Send(1).push.has_value());
  SECTION("no more is taken meanwhile") {
    f.Receive(f.Piece(1, 56, "x"));
    CHECK(f.Send(1).error->message() == "gradient: a chunk for which the client has no credit");
    return;
  }
  f.shard.Push({1, 0, 1});
  f.shard.Commit(0, {0, 1});
  CHECK(f.Send(1).push->outcome() == v1::OK);
  CHECK(f.Send(1).values() ==
        std::vector<float>{4.5, 4, 5, 5, 3.5, 3});  // half of it: the other part has none
}

TEST_CASE("A stream has at most so many bytes of rows under way") {
  RowsFixture f(v1::ConsistencyConfig::MODE_SYNC);
  f.shard.config.mutable_tables(1)->set_dim(16384);
  f.Start();
  TestRows most{1, {}, {}};  // 512 MiB
  while (most.keys.size() < (512 << 20) / (16384 * sizeof(float))) most.keys.push_back(most.keys.size());
  const std::vector<TestRows> pulled = {most};
  for (uint64_t id = 1; id <= 3; ++id) {
    v1::ExchangeRequest first = f.First(id, std::nullopt, {}, true, pulled);
    first.mutable_pull()->set_clock(1);  // waits for the step
    first.MergeFrom(f.Piece(id, 0, f.Bytes({}, pulled)));
    f.Receive(first);
    CHECK(f.Send(id).error.has_value() == (id == 3));
  }
  CHECK(f.Send(3).error->code() == static_cast<int>(absl::StatusCode::kUnavailable));
  CHECK(f.limits.of(Limit::kRowBytes) == 1);
  // Pushes have a limit of their own.
  std::vector<TestRows> pushed = {most};
  pushed[0].keys.pop_back();
  for (uint64_t id = 4; id <= 6; ++id) {
    f.Receive(f.First(id, TestPush{0, 0, static_cast<uint32_t>(id % 2)}, pushed, false, {}));
    CHECK(f.Send(id).error.has_value() == (id == 6));
  }
  CHECK(f.limits.of(Limit::kRowBytes) == 2);
}

TEST_CASE("All streams together have at most so many bytes of rows under way") {
  ByteBudget arriving(1000), asked(1000);
  RowsFixture f(v1::ConsistencyConfig::MODE_SYNC);
  f.arriving_rows = &arriving;
  f.asked_rows = &asked;
  f.Start();
  // What other streams have taken.
  ByteBudget::Share others(&asked);
  REQUIRE(others.Take(990) == nullptr);
  const std::vector<TestRows> pulled = {{1, {1, 2, 3}, {}}};
  const auto pull = [&](uint64_t id) {
    v1::ExchangeRequest first = f.First(id, std::nullopt, {}, true, pulled);
    first.MergeFrom(f.Piece(id, 0, f.Bytes({}, pulled)));
    f.Receive(first);
    return f.Send(id);
  };
  const auto refused = pull(1);
  REQUIRE(refused.error.has_value());
  CHECK(refused.error->code() == static_cast<int>(absl::StatusCode::kUnavailable));
  CHECK_THAT(refused.error->message(), Catch::Contains("rows of 990 bytes have all clients asked for"));
  CHECK(f.limits.of(Limit::kRowBytes) == 1);
  others.GiveBack();
  CHECK_FALSE(pull(2).error.has_value());
  // It is sent: nothing is kept.
  CHECK(asked.taken() == 0);
  CHECK(arriving.taken() == 0);
}

}  // namespace
}  // namespace weir

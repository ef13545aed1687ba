// Pushes that no correct client sends: each is refused with the right code and changes nothing. The server
// goes on and, where the protocol says so, the stream too.
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/server_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
using Messages = std::vector<v1::ExchangeRequest>;

constexpr int64_t kElements = 150'000;  // three chunks
constexpr int64_t kUnit = 65'536;

struct Malformed {
  std::string name;
  std::function<void(Messages&)> spoil;
  // A substring of the error message.
  std::string says = "";
};

// Errors of the exchange: INVALID_ARGUMENT.
const std::vector<Malformed>& Cases() {
  static const auto* cases = new std::vector<Malformed>{
      {"fewer elements than the shard", [](Messages& m) { m[0].mutable_push()->set_elements(kElements - 1); },
       "elements"},
      {"more elements than the shard",
       [](Messages& m) { m[0].mutable_push()->set_elements(uint64_t{1} << 62); }, "elements"},
      {"no elements", [](Messages& m) { m[0].mutable_push()->clear_elements(); }, "elements"},
      {"another model", [](Messages& m) { m[0].mutable_push()->mutable_caller()->set_model_hash(7); },
       "model_hash"},
      {"no examples", [](Messages& m) { m[0].mutable_push()->clear_examples(); }, "examples"},
      {"a part that the step does not have", [](Messages& m) { m[0].mutable_push()->set_part(1); }, "part 1"},
      {"another batch", [](Messages& m) { m[0].mutable_push()->set_batch_plus_one(99); }, "batch"},
      {"more examples than the part has", [](Messages& m) { m[0].mutable_push()->set_examples(1u << 30); },
       "examples"},
      {"a clock far ahead", [](Messages& m) { m[0].mutable_push()->set_clock(1000); }},
      {"an unknown dtype", [](Messages& m) { m[0].mutable_push()->set_dtype(static_cast<v1::Dtype>(7)); },
       "dtype: 7"},
      {"bfloat16 that is said to be float32",
       [](Messages& m) { m[2].mutable_gradient()->resize(m[2].gradient().size() / 2); },
       "multiples of 65536"},
      {"neither push nor pull",
       [](Messages& m) {
         m[0].clear_push();
         m[0].clear_pull();
       },
       "a push or a pull"},
      {"a gradient with a pull alone",
       [](Messages& m) {
         *m[0].mutable_pull()->mutable_caller() = m[0].push().caller();
         m[0].clear_push();
       },
       "without a push"},

      {"a wrong start", [](Messages& m) { m[1].set_first(m[1].first() + 1); }, "multiples of 65536"},
      {"a start within a block's values", [](Messages& m) { m[1].set_first(m[1].first() - 1); },
       "multiples of 65536"},
      {"a wrong end", [](Messages& m) { m[1].mutable_gradient()->resize(4 * (kUnit + 16)); },
       "multiples of 65536"},
      {"a first chunk that is not at 0", [](Messages& m) { m[0].set_first(1); }, "multiples of 65536"},
      {"an overlap", [](Messages& m) { m[1].set_first(m[1].first() - kUnit); }, "came before"},
      {"a chunk twice", [](Messages& m) { m.insert(m.begin() + 1, m[1]); }, "came before"},
      {"a position beyond the shard", [](Messages& m) { m[1].set_first(10 * kUnit); }, "150000 elements"},
      {"a position beyond everything", [](Messages& m) { m[1].set_first(~uint64_t{0} - kUnit + 1); },
       "150000 elements"},
      {"half a value", [](Messages& m) { m[1].mutable_gradient()->pop_back(); }, "chunk of 262143 bytes"},
      {"one value too many", [](Messages& m) { m[2].mutable_gradient()->append("1234"); }},
      {"an empty chunk", [](Messages& m) { m[1].clear_gradient(); }, "must hold a chunk"},
      {"a first chunk above 1 MiB",
       [](Messages& m) { m[0].mutable_gradient()->resize((1 << 20) + 4 * kUnit); }, "at most 1048576"},
      {"a further chunk above 1 MiB",
       [](Messages& m) { m[1].mutable_gradient()->resize((1 << 20) + 4 * kUnit); }, "at most 1048576"},

      {"shared memory that was not granted", [](Messages& m) { m[0].mutable_shared()->set_bytes(4096); },
       "no shared memory"},
      {"more of it", [](Messages& m) { m[1].mutable_shared()->set_bytes(4096); }, "no shared memory"},

      {"a pull of an unknown dtype",
       [](Messages& m) { m[0].mutable_pull()->set_dtype(static_cast<v1::Dtype>(7)); }, "dtype: 7"},
      {"a pull at another clock", [](Messages& m) { m[0].mutable_pull()->set_clock(77); }, "pull.clock: 77"},
      {"a pull of somebody else", [](Messages& m) { m[0].mutable_pull()->mutable_caller()->set_worker(5); },
       "pull.caller"},
      {"a push and a pinned pull", [](Messages& m) { m[0].mutable_pull()->set_pin(1); }, "pull.pin"},
  };
  return *cases;
}

void CheckError(const absl::Status& status, absl::StatusCode code, const std::string& says = "") {
  CHECK(status.code() == code);
  CHECK_THAT(std::string(status.message()), Contains(says));
}

TEST_CASE("Malformed pushes are refused, change nothing, and the stream goes on") {
  const bool pull = GENERATE(false, true);
  const auto mode = GENERATE(v1::ConsistencyConfig::MODE_SYNC, v1::ConsistencyConfig::MODE_ASYNC);
  ServerFixture f(kElements);
  f.config.mutable_consistency()->set_mode(mode);
  f.Start();
  f.Join();
  const RawStream* const stream = &f.stream();
  for (const Malformed& malformed : Cases()) {
    // Cases that only sync refuses.
    if (mode != v1::ConsistencyConfig::MODE_SYNC &&
        (malformed.says == "part 1" || malformed.says == "batch" ||
         malformed.name == "more examples than the part has")) {
      continue;
    }
    INFO(malformed.name << (pull ? " (with a pull)" : ""));
    Messages messages = pull ? f.PushAndPull() : f.Push();
    malformed.spoil(messages);
    if (!pull && messages[0].has_pull() && messages[0].has_push()) continue;
    CheckError(f.stream().Run(messages).error, absl::StatusCode::kInvalidArgument, malformed.says);
    // Messages of the refused exchange that are still on their way are ignored.
    if (messages.size() > 1) CHECK(f.stream().Write(messages[1]));
    f.TrainStep();
  }
  CHECK(&f.stream() == stream);
}

TEST_CASE("Chunks may come in any order and of any length") {
  ServerFixture f(kElements);
  f.Start();
  f.Join();
  Messages messages = f.Push();
  SECTION("another order") {
    for (auto [a, b] : {std::pair(1, 2), std::pair(0, 2)}) {
      const uint64_t first = messages[a].first();
      messages[a].set_first(messages[b].first());
      messages[b].set_first(first);
      messages[a].mutable_gradient()->swap(*messages[b].mutable_gradient());
    }
  }
  SECTION("in units") {
    v1::ExchangeRequest head = messages[0];
    head.clear_gradient();
    messages = {head};
    for (int64_t first = 0; first < kElements; first += kUnit) {
      v1::ExchangeRequest& message = messages.emplace_back();
      message.set_id(head.id());
      message.set_first(first);
      const std::vector<float> ones(std::min(kUnit, kElements - first), 1);
      message.set_gradient(ones.data(), ones.size() * sizeof(float));
    }
  }
  const ExchangeResult result = f.stream().Run(messages);
  INFO(result.error);
  REQUIRE(result.outcome() == v1::OK);
  ++f.clock;
  std::vector<float> weights;
  f.base = f.Pull(&weights);
  const bool ones = weights == std::vector<float>(kElements, 1);
  CHECK(ones);
}

TEST_CASE("Exchanges on one stream interleave") {
  ServerFixture f(kElements);
  f.config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_ASYNC);
  f.Start();
  f.Join();
  RawStream& stream = f.stream();
  const Messages push = f.Push();
  // All but the last chunk.
  REQUIRE(stream.Write(push[0]));
  uint32_t credit = 0;
  while (credit < 2) credit += stream.Read()->credit();
  REQUIRE(stream.Write(push[1]));
  // Meanwhile one pull, and one that fails.
  v1::ExchangeRequest pull;
  pull.set_id(f.NextId());
  *pull.mutable_pull() = f.PullHeader();
  REQUIRE(stream.Read()->credit() == 1);
  const ExchangeResult pulled = stream.Run({pull});
  INFO(pulled.error);
  REQUIRE(pulled.outcome() == v1::OK);
  CHECK(pulled.pull->version().count() == 0);
  const bool zeros = pulled.weights == std::vector<float>(kElements, 0);
  CHECK(zeros);
  pull.set_id(f.NextId());
  pull.mutable_pull()->set_dtype(static_cast<v1::Dtype>(99));
  CheckError(stream.Run({pull}).error, absl::StatusCode::kInvalidArgument, "dtype");

  REQUIRE(stream.Write(push[2]));
  CHECK(stream.Run(push, push.size()).outcome() == v1::OK);
}

TEST_CASE("A chunk needs credit") {
  ServerFixture f(kElements);
  f.config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_ASYNC);
  f.Start();
  f.Join();
  // The shard waits for the push before, and takes nothing of this one.
  ++f.clock;
  const Messages messages = f.Push();
  --f.clock;
  REQUIRE(f.stream().Write(messages[0]));
  REQUIRE(f.stream().Write(messages[1]));
  CheckError(f.stream().Run(messages, 3).error, absl::StatusCode::kInvalidArgument, "no credit");
  f.TrainStep();
}

TEST_CASE("Of pushes that wait for their turn, so many may bring their first chunk") {
  ServerFixture f(kElements);
  f.config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_ASYNC);
  f.Start();
  f.Join();
  ++f.clock;
  for (int i = 0; i < 32; ++i) REQUIRE(f.stream().Write(f.Push()[0]));
  CheckError(f.stream().Run(f.Push()).error, absl::StatusCode::kUnavailable, "32 pushes");
  --f.clock;
  f.raw_stream = nullptr;
  f.TrainStep();
}

TEST_CASE("What no exchange can be read from ends the stream, and nothing else") {
  ServerFixture f(kElements);
  f.Start();
  f.Join();
  f.TrainStep();
  Messages messages = f.Push();
  const auto ends = [&](const v1::ExchangeRequest& message, absl::StatusCode code, const std::string& says) {
    f.stream().Write(message);
    CheckError(f.stream().End(), code, says);
    f.raw_stream = nullptr;
    f.TrainStep();
  };
  messages[0].set_id(0);
  ends(messages[0], absl::StatusCode::kInvalidArgument, "id: must be at least 1");
  messages[0].set_id(1);
  ends(messages[0], absl::StatusCode::kInvalidArgument, "ids must rise");
  v1::ExchangeRequest late;
  late.set_id(f.NextId());
  late.mutable_shared_memory()->set_token("0123456789abcdef");
  ends(late, absl::StatusCode::kInvalidArgument, "shared_memory");
  v1::ExchangeRequest release;
  release.set_id(f.NextId());
  release.set_released(1);
  ends(release, absl::StatusCode::kInvalidArgument, "released: 1 chunks of 0");
  messages[0].set_id(f.NextId());
  messages[0].mutable_gradient()->resize((4 << 20) + 1);
  ends(messages[0], absl::StatusCode::kResourceExhausted, "larger than max");
}

TEST_CASE("A stream has so many exchanges open at once") {
  ServerFixture f(40, 1, 2);
  f.Start();
  f.Join();
  RawStream& stream = f.stream();
  v1::ExchangeRequest pull;
  *pull.mutable_pull() = f.PullHeader();
  pull.mutable_pull()->set_clock(1);  // waits, since no worker pushes
  for (int i = 0; i < 1024; ++i) {
    pull.set_id(f.NextId());
    REQUIRE(stream.Write(pull));
  }
  pull.set_id(f.NextId());
  CheckError(stream.Run({pull}).error, absl::StatusCode::kResourceExhausted, "1024");
}

TEST_CASE("A client that closes its side gets the answers to what it has sent whole") {
  ServerFixture f(kElements);
  f.Start();
  f.Join();
  Messages messages = f.Push();
  SECTION("a push in the middle") {
    REQUIRE(f.stream().Write(messages[0]));
    while (f.stream().Read()->credit() == 0) {
    }
    f.stream().WritesDone();
    CheckError(f.stream().Run(messages, messages.size()).error, absl::StatusCode::kInvalidArgument,
               "65536 of 150000");
    CHECK(f.stream().End().ok());
  }
  SECTION("a pull") {
    v1::ExchangeRequest pull;
    pull.set_id(f.NextId());
    *pull.mutable_pull() = f.PullHeader();
    REQUIRE(f.stream().Write(pull));
    f.stream().WritesDone();
    const ExchangeResult result = f.stream().Run({pull}, 1);
    CHECK(result.weights.size() == kElements);
    CHECK(f.stream().End().ok());
  }
  f.raw_stream = nullptr;
  f.TrainStep();
}

TEST_CASE("A push whose connection breaks in the middle has no effect") {
  const auto mode = GENERATE(v1::ConsistencyConfig::MODE_SYNC, v1::ConsistencyConfig::MODE_ASYNC);
  ServerFixture f(kElements);
  f.config.mutable_consistency()->set_mode(mode);
  f.Start();
  f.Join();
  for (int i = 0; i < 6; ++i) {
    const Messages messages = f.PushAndPull();
    for (int chunk = 0; chunk < i % 3; ++chunk) {
      CHECK(f.stream().Write(messages[chunk]));
      while (f.stream().Read()->credit() == 0) {
      }
    }
    f.stream().Cancel();
    CHECK(f.stream().End().code() == absl::StatusCode::kCancelled);
    f.raw_stream = nullptr;
    f.TrainStep();
  }
}

TEST_CASE("Strangers are told that they are fenced, and change nothing") {
  ServerFixture f;
  f.Start();
  f.Join();
  Messages messages = f.Push();
  SECTION("an unknown worker") { messages[0].mutable_push()->mutable_caller()->set_worker(17); }
  SECTION("an earlier incarnation") { messages[0].mutable_push()->mutable_caller()->set_incarnation(0); }
  const ExchangeResult result = f.stream().Run(messages);
  REQUIRE(result.error.ok());
  CHECK(result.push->outcome() == v1::FENCED);
  CHECK(result.push->reason() != "");
  f.TrainStep();
}

TEST_CASE("Before there is a model, pushes and pulls are asked to come again") {
  ServerFixture f;
  f.Start();
  CHECK(f.stream().Run(f.Push()).error.code() == absl::StatusCode::kUnavailable);
  v1::ExchangeRequest pull;
  pull.set_id(f.NextId());
  pull.mutable_pull();
  CHECK(f.stream().Run({pull}).error.code() == absl::StatusCode::kUnavailable);
  f.Join();
  f.TrainStep();
}

TEST_CASE("A NaN on the wire is refused by name, and the push is completed without it") {
  const auto mode = GENERATE(v1::ConsistencyConfig::MODE_SYNC, v1::ConsistencyConfig::MODE_ASYNC);
  ServerFixture f(kElements);
  f.config.mutable_consistency()->set_mode(mode);
  f.config.mutable_consistency()->set_on_nonfinite(v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  f.Start();
  f.Join();
  Messages messages = f.PushAndPull();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  messages[1].mutable_gradient()->replace(12 * sizeof(float), sizeof(float),
                                          reinterpret_cast<const char*>(&nan), sizeof(float));
  const ExchangeResult result = f.stream().Run(messages);
  INFO(result.error);
  REQUIRE(result.error.ok());
  CHECK(result.push->outcome() == v1::REFUSED);
  CHECK_THAT(result.push->reason(), Contains("w[65548]"));
  REQUIRE(result.pull.has_value());
  CHECK(result.pull->outcome() == v1::OK);
  const bool untouched = result.weights == std::vector<float>(kElements, 0);
  CHECK(untouched);
}

TEST_CASE("A push that says that it is to be refused brings no gradient") {
  const auto mode = GENERATE(v1::ConsistencyConfig::MODE_SYNC, v1::ConsistencyConfig::MODE_ASYNC);
  ServerFixture f(kElements);
  f.config.mutable_consistency()->set_mode(mode);
  f.config.mutable_consistency()->set_on_nonfinite(v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  f.Start();
  f.Join();
  Messages messages = f.PushAndPull();
  messages.resize(1);
  messages[0].mutable_push()->set_refused("it is not finite");
  messages[0].set_gradient(std::string(4, '\0'));
  CHECK_THAT(std::string(f.stream().Run(messages).error.message()), Contains("with push.refused"));
  messages[0].set_id(f.NextId());
  messages[0].clear_gradient();
  const ExchangeResult result = f.stream().Run(messages);
  INFO(result.error);
  REQUIRE(result.error.ok());
  CHECK(result.push->outcome() == v1::REFUSED);
  CHECK(result.push->reason() == "it is not finite");
  REQUIRE(result.pull.has_value());
  CHECK(result.pull->outcome() == v1::OK);
  const bool untouched = result.weights == std::vector<float>(kElements, 0);
  CHECK(untouched);
}

}  // namespace
}  // namespace weir

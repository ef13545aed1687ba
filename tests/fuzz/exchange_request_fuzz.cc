// What a client sends on its stream, with a real shard behind the session. The first byte chooses the mode;
// the rest stands for a sequence of messages. An empty message stands for a second that passes, and one zero
// byte for the end of what the client sends.
#include <cstring>
#include <deque>

#include "common/model/wire_model.h"
#include "common/optimizer/kernels.h"
#include "common/system/clock.h"
#include "common/threads/thread.h"
#include "ps_server/exchange/exchange_session.h"
#include "ps_server/shard/shard.h"
#include "tests/common/task_queue.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/messages.h"

namespace weir {
namespace {

constexpr Shard::Session kSession = 9;
constexpr uint64_t kChunkElements = 16;

// The client's one segment, as long as the gradient.
class OneSegment final : public ClientSegments {
 public:
  absl::StatusOr<const char*> At(uint32_t segment, uint64_t offset, uint64_t bytes) const override {
    if (segment != 0) return absl::NotFoundError("no such segment");
    if (offset > sizeof bytes_ || bytes > sizeof bytes_ - offset) return absl::OutOfRangeError("beyond it");
    return bytes_ + offset;
  }

 private:
  const char bytes_[kElements * sizeof(float)] = {};
};

// All memory is shared: weights lie where they lie.
class AllShared final : public SharedMemory {
 public:
  std::optional<Place> Find(const void*) const override { return Place{1, 0}; }
  std::shared_ptr<const ClientSegments> Claim(absl::string_view token) const override {
    return token == "token" ? std::make_shared<const OneSegment>() : nullptr;
  }
  void KeepFor(absl::string_view, std::vector<std::shared_ptr<const void>>) override {}
};

class Server {
 public:
  explicit Server(v1::ConsistencyConfig::Mode mode) {
    Shard::Options options;
    options.config.mutable_consistency()->set_mode(mode);
    if (mode == v1::ConsistencyConfig::MODE_BOUNDED) options.config.mutable_consistency()->set_staleness(2);
    options.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_SGD);
    options.config.mutable_optimizer()->set_learning_rate(1);
    options.config.mutable_data()->set_batch_size(8);
    options.config.mutable_cluster()->set_wait_seconds(60);
    *options.config.mutable_tables() = ExchangedTables();
    options.new_incarnation = [] { return kShardIncarnation; };
    options.clock = &clock_;
    static ThreadPool threads(1);
    options.threads = &threads;
    options.kernels = &BestKernels();
    v1::ControlMessage message;
    v1::Install& install = *message.mutable_install();
    install.set_num_shards(1);
    install.set_workers(1);
    install.set_parts(1);
    install.set_total_batches(2000);
    install.set_total_examples(16000);
    install.set_total_steps(1000);
    *install.mutable_model() = ToProto(ExchangedModel());
    install.set_job_config(options.config.SerializeAsString());
    shard_ = std::make_unique<Shard>(std::move(options));
    shard_->SetReporter([](const v1::ShardReport&) {});
    shard_->Control(message);
    v1::Membership& membership = *message.mutable_membership()->mutable_membership();
    membership.set_epoch(kEpoch);
    v1::Member& member = *membership.add_members();
    member.set_incarnation(kWorkerIncarnation);
    member.set_task("worker:0");
    shard_->Control(message);
    shard_->Quiesce();
    FuzzCheck(shard_->elements() == kElements, "the shard has its model");

    ExchangeSession::Options session;
    session.shard = shard_.get();
    session.executor = &tasks_;
    session.id = kSession;
    session.admit = [](const v1::Caller&, bool) { return absl::OkStatus(); };
    session.chunk_elements = kChunkElements;
    session.chunks_in_flight = 2;
    session.shared_memory = &shared_;
    session_ = std::make_shared<ExchangeSession>(session, [] {});
  }
  ~Server() {
    session_->End();
    Run();
  }

  // Takes one message and sends what there is to send. Returns whether the stream goes on.
  bool Take(const std::string& message) {
    if (message.empty()) {
      clock_.Advance(absl::Seconds(1));
      shard_->Tick();
    } else if (message == std::string(1, '\0')) {
      session_->EndInput();
    } else {
      if (session_->congested()) return false;
      // A buffer of its own, so that reading beyond it is found.
      if (!session_->Receive(ToIncoming(message)).ok()) return false;
    }
    Run();
    OutgoingMessage out;
    while (session_->Send(&out)) {
      std::string bytes = out.head;
      for (const auto& piece : out.payload) bytes.append(piece.bytes.data(), piece.bytes.size());
      session_->Sent();
      v1::ExchangeReply reply;
      FuzzCheck(reply.ParseFromString(bytes), "what a session sends is an ExchangeReply");
      answered_ = answered_ || (reply.push().outcome() == v1::OK || reply.pull().outcome() == v1::OK);
      Run();
    }
    return true;
  }
  bool answered() const { return answered_; }

 private:
  // Until neither shard nor session has anything to do. A shard with tables has a thread of its own; an
  // exchange goes to it and comes back for its push and for its pull.
  void Run() {
    for (int i = 0; i < 3; ++i) {
      shard_->Quiesce();
      tasks_.Run();
    }
  }

  ManualClock clock_;
  TaskQueue tasks_;
  AllShared shared_;
  std::unique_ptr<Shard> shard_;
  std::shared_ptr<ExchangeSession> session_;
  bool answered_ = false;
};

}  // namespace

// Takes it: the shard answered something with OK.
bool ReadInput(absl::string_view input) {
  if (input.empty()) return false;
  constexpr v1::ConsistencyConfig::Mode kModes[] = {v1::ConsistencyConfig::MODE_ASYNC,
                                                    v1::ConsistencyConfig::MODE_BOUNDED,
                                                    v1::ConsistencyConfig::MODE_SYNC};
  Server server(kModes[static_cast<unsigned char>(input[0]) % std::size(kModes)]);
  for (const std::string& message : SplitMessages(input.substr(1))) {
    if (!server.Take(message)) break;
  }
  return server.answered();
}

std::vector<std::string> Seeds() {
  std::vector<std::string> messages;
  v1::ExchangeRequest greeting;
  greeting.mutable_shared_memory()->set_token("token");
  messages.push_back(greeting.SerializeAsString());
  for (const v1::ExchangeRequest& request : Requests()) messages.push_back(request.SerializeAsString());
  messages.emplace_back();
  messages.emplace_back(1, '\0');
  std::vector<std::string> seeds = {"0" + JoinMessages(messages), "1" + JoinMessages(messages)};
  // In sync the pushes wait for a commit; a pull of the first version does not.
  v1::ExchangeRequest pull = Requests()[1];
  pull.mutable_pull()->set_clock(0);
  messages.insert(messages.begin() + 1, pull.SerializeAsString());
  messages.erase(messages.begin());  // without shared memory
  seeds.push_back("2" + JoinMessages(messages));
  return seeds;
}

std::vector<std::string> Words() {
  return {"token", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x1a\0", "\x7a"};
}

}  // namespace weir

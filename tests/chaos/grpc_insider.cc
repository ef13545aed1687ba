#include "tests/chaos/grpc_insider.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/model/wire_model.h"
#include "common/protocol/handshake.h"
#include "common/rpc/grpc_credentials.h"
#include "proto/parameter_server.grpc.pb.h"
#include "worker/data/load_data.h"
#include "worker/model/model.h"

namespace weir {
namespace {

using std::chrono::milliseconds;

// The pause between two acts.
constexpr milliseconds kPace{10};
// Readers that the insider holds at once; a job has 256 at most.
constexpr size_t kHeld = 150;
// Pulls of each, whose answers it does not read.
constexpr uint64_t kPulls = 100;

constexpr char kReaders[] = "readers", kFlood[] = "flood";

void SetDeadline(grpc::ClientContext& context, milliseconds limit) {
  context.set_deadline(std::chrono::system_clock::now() + limit);
}

// A reader's stream, which asks for weights and takes none of them.
struct StalledStream {
  explicit StalledStream(const std::shared_ptr<grpc::Channel>& channel)
      : stub(v1::ParameterServer::NewStub(channel)) {}
  ~StalledStream() {
    if (call != nullptr) context.TryCancel();
  }
  std::unique_ptr<v1::ParameterServer::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ExchangeRequest, v1::ExchangeReply>> call;
};

// A Join under way.
struct PendingJoin {
  grpc::ClientContext context;
  v1::JoinReply reply;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::JoinReply>> call;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Insider>> Insider::Create(const Options& options, Acts* acts) {
  WEIR_ASSIGN_OR_RETURN(JobToken token, JobToken::ReadIfGiven(options.token_path));
  WEIR_ASSIGN_OR_RETURN(std::shared_ptr<const Tls> tls, Tls::ReadIfGiven(options.tls));
  WEIR_ASSIGN_OR_RETURN(const v1::JobConfig config, LoadJobConfig(options.config_path));
  WEIR_ASSIGN_OR_RETURN(const Datasets data, LoadData(config.data(), ".", config.model().loss()));
  WEIR_ASSIGN_OR_RETURN(
      const ModelNeeds model,
      Model::Check(config.model(), ModelInputsOf(config, data.train.shape()), data.train.outputs()));
  std::unique_ptr<Insider> insider(new Insider(options, std::move(token), std::move(tls), acts));
  v1::JoinRequest& join = insider->join_;
  join.set_task("insider");
  join.set_model(ToProto(model.spec).SerializeAsString());
  join.set_job_config(config.SerializeAsString());
  join.set_train_examples(static_cast<uint64_t>(data.train.size()));
  *join.mutable_protocol() = OwnProtocol();
  for (const std::string& server : options.servers) join.add_ps_addresses(server);
  return insider;
}

Insider::Insider(const Options& options, JobToken token, std::shared_ptr<const Tls> tls, Acts* acts)
    : servers_(options.servers),
      token_(std::move(token)),
      credentials_(std::move(tls)),
      acts_(acts),
      instances_(static_cast<uint64_t>(getpid()) << 32) {}

const std::vector<std::string>& Insider::Kinds() {
  static const auto* const kinds = new std::vector<std::string>{kReaders, kFlood};
  return *kinds;
}

std::string Insider::Describe(const std::string& kind) {
  return kind == kReaders ? "joins as ever more readers, which pin, pull, and never read, unpin or leave"
                          : "joins as worker:0 again and again, a hundred times a second";
}

void Insider::Run(const std::string& kind, const std::atomic<bool>& stop) {
  if (kind == kReaders) return HoardReaders(stop);
  if (kind == kFlood) return FloodWithJoins(stop);
}

void Insider::HoardReaders(const std::atomic<bool>& stop) {
  const auto coordinator = v1::Coordinator::NewStub(Connect(0, 0));
  std::deque<StalledStream> streams;
  for (uint64_t i = 1; !stop; ++i, std::this_thread::sleep_for(kPace)) {
    const v1::JoinRequest join = NextJoin(v1::READER);
    v1::JoinReply joined;
    grpc::ClientContext joining;
    SetToken(token_, &joining);
    SetDeadline(joining, milliseconds(500));
    const bool is_member = coordinator->Join(&joining, join, &joined).ok();
    acts_->Count("join", is_member);
    if (!is_member) continue;

    v1::PinRequest pin;
    pin.mutable_caller()->set_worker(joined.worker());
    pin.mutable_caller()->set_incarnation(joined.incarnation());
    pin.mutable_caller()->set_epoch(joined.membership().epoch());
    pin.mutable_caller()->set_model_hash(joined.model_hash());
    pin.mutable_caller()->set_instance(join.instance());
    pin.set_lease_seconds(600);
    v1::PinReply pinned;
    grpc::ClientContext pinning;
    SetToken(token_, &pinning);
    SetDeadline(pinning, milliseconds(100));
    acts_->Count("pin", coordinator->Pin(&pinning, pin, &pinned).ok());

    if (streams.size() >= kHeld) streams.pop_front();
    StalledStream& stream = streams.emplace_back(Connect(static_cast<uint32_t>(i % joined.num_shards()), i));
    SetToken(token_, &stream.context);
    SetDeadline(stream.context, std::chrono::minutes(10));
    stream.call = stream.stub->Exchange(&stream.context);
    for (uint64_t id = 1; id <= kPulls; ++id) {
      v1::ExchangeRequest request;
      request.set_id(id);
      *request.mutable_pull()->mutable_caller() = pin.caller();
      request.mutable_pull()->set_pin(pinned.pin());
      if (!stream.call->Write(request)) break;
    }
  }
}

void Insider::FloodWithJoins(const std::atomic<bool>& stop) {
  const auto coordinator = v1::Coordinator::NewStub(Connect(0, 0));
  grpc::CompletionQueue queue;
  const auto reap = [this](void* tag) {
    const std::unique_ptr<PendingJoin> join(static_cast<PendingJoin*>(tag));
    acts_->Count("join", join->status.ok());
  };
  void* tag = nullptr;
  bool ok = false;
  while (!stop) {
    auto join = std::make_unique<PendingJoin>();
    SetToken(token_, &join->context);
    SetDeadline(join->context, milliseconds(1000));
    join->call = coordinator->AsyncJoin(&join->context, NextJoin(v1::WORKER), &queue);
    PendingJoin* const pending = join.release();
    pending->call->Finish(&pending->reply, &pending->status, pending);
    while (queue.AsyncNext(&tag, &ok, std::chrono::system_clock::now()) == grpc::CompletionQueue::GOT_EVENT) {
      reap(tag);
    }
    std::this_thread::sleep_for(kPace);
  }
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) reap(tag);
}

std::shared_ptr<grpc::Channel> Insider::Connect(uint32_t server, uint64_t connection) const {
  grpc::ChannelArguments own;
  own.SetInt("weir.test.connection", static_cast<int>(connection));
  return grpc::CreateCustomChannel(servers_[server], credentials_.ToServer(server, servers_[server]), own);
}

v1::JoinRequest Insider::NextJoin(v1::Role role) {
  v1::JoinRequest join = join_;
  join.set_role(role);
  join.set_instance(++instances_);
  return join;
}

}  // namespace weir

#include "tests/ps_server/server_fixture.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "catch2/catch.hpp"
#include "common/model/wire_model.h"

namespace weir {
namespace {

v1::Caller CallerOf(const v1::JoinReply& member) {
  v1::Caller caller;
  caller.set_worker(member.worker());
  caller.set_incarnation(member.incarnation());
  caller.set_epoch(member.membership().epoch());
  caller.set_model_hash(member.model_hash());
  return caller;
}

}  // namespace

ServerFixture::ServerFixture(int64_t elements, uint32_t servers, uint32_t workers)
    : servers(servers), workers(workers) {
  config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_SYNC);
  config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_SGD);
  config.mutable_optimizer()->set_learning_rate(-1);
  config.mutable_data()->set_batch_size(8);
  config.mutable_cluster()->set_lease_seconds(60);
  config.mutable_server()->set_min_shard_kib(0);
  model.tensors = {{"w", {elements}, TensorKind::kParameter, Initializer::Zeros()}};
}

void ServerFixture::Start() {
  InProcessCluster::Options options;
  options.config = config;
  options.servers = servers;
  options.workers = workers;
  options.http_port = http_port;
  options.token = token;
  auto started = InProcessCluster::Start(std::move(options));
  REQUIRE(started.ok());
  cluster = *std::move(started);
  for (const std::string& address : cluster->addresses()) {
    const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    shards.push_back(v1::ParameterServer::NewStub(channel));
    controls.push_back(v1::ShardControl::NewStub(channel));
    if (coordinator == nullptr) coordinator = v1::Coordinator::NewStub(channel);
  }
}

int ServerFixture::port() const {
  const std::string& address = cluster->addresses()[0];
  return std::atoi(address.c_str() + address.rfind(':') + 1);
}

std::unique_ptr<grpc::ClientContext> ServerFixture::Context() const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  return context;
}

v1::JoinRequest ServerFixture::JoinRequest(uint32_t rank) const {
  v1::JoinRequest request;
  request.set_role(v1::WORKER);
  request.set_task("worker:" + std::to_string(rank));
  request.set_rank(rank);
  request.set_instance(1000 + 100 * joins + rank);
  request.set_model(ToProto(model).SerializeAsString());
  request.set_job_config(config.SerializeAsString());
  request.set_train_examples(800);
  for (const std::string& address : cluster->addresses()) request.add_ps_addresses(address);
  return request;
}

void ServerFixture::Join() {
  ++joins;
  members.resize(workers);
  std::vector<grpc::Status> statuses(workers);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back([this, rank, &statuses] {
      const auto context = Context();
      statuses[rank] = coordinator->Join(context.get(), JoinRequest(rank), &members[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const grpc::Status& status : statuses) {
    INFO(status.error_message());
    REQUIRE(status.ok());
  }
  for (const v1::JoinReply& member : members) {
    v1::HeartbeatRequest beat;
    *beat.mutable_caller() = CallerOf(member);
    v1::HeartbeatReply heard;
    REQUIRE(coordinator->Heartbeat(Context().get(), beat, &heard).ok());
  }
  caller = CallerOf(members[0]);
  base = Pull(nullptr);
}

RawStream& ServerFixture::stream() {
  if (raw_stream == nullptr) raw_stream = std::make_unique<RawStream>(*shards[0]);
  return *raw_stream;
}

v1::PullRequest ServerFixture::PullHeader() const {
  v1::PullRequest request;
  *request.mutable_caller() = caller;
  request.set_clock(clock);
  return request;
}

v1::Version ServerFixture::Pull(std::vector<float>* weights) {
  v1::ExchangeRequest request;
  request.set_id(NextId());
  *request.mutable_pull() = PullHeader();
  ExchangeResult result = stream().Run({request});
  INFO(result.error);
  REQUIRE(result.error.ok());
  CHECK(result.pull->outcome() == v1::OK);
  if (weights != nullptr) *weights = std::move(result.weights);
  return result.pull->version();
}

v1::PushRequest ServerFixture::Header() const {
  v1::PushRequest header;
  *header.mutable_caller() = caller;
  header.set_clock(clock);
  header.set_batch_plus_one(clock + 1);
  header.set_examples(8);
  *header.mutable_base() = base;
  header.set_elements(model.elements());
  return header;
}

std::vector<v1::ExchangeRequest> ServerFixture::Push() {
  constexpr int64_t kChunk = 65'536;
  const uint64_t id = NextId();
  std::vector<v1::ExchangeRequest> messages;
  for (int64_t first = 0; first < model.elements(); first += kChunk) {
    v1::ExchangeRequest& message = messages.emplace_back();
    message.set_id(id);
    if (first == 0) *message.mutable_push() = Header();
    message.set_first(first);
    const std::vector<float> ones(std::min(kChunk, model.elements() - first), 1);
    message.set_gradient(ones.data(), ones.size() * sizeof(float));
  }
  return messages;
}

std::vector<v1::ExchangeRequest> ServerFixture::PushAndPull() {
  std::vector<v1::ExchangeRequest> messages = Push();
  *messages[0].mutable_pull() = PullHeader();
  messages[0].mutable_pull()->set_clock(clock + 1);
  return messages;
}

void ServerFixture::TrainStep() {
  const ExchangeResult result = stream().Run(Push());
  INFO(result.error);
  REQUIRE(result.error.ok());
  REQUIRE(result.outcome() == v1::OK);
  ++clock;
  std::vector<float> weights;
  base = Pull(&weights);
  CHECK(base.count() == clock);
  // Compared outside CHECK: Catch would print the whole vectors.
  const bool one_more = weights == std::vector<float>(model.elements(), static_cast<float>(clock));
  CHECK(one_more);
}

}  // namespace weir

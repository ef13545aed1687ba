// Servers with a folder for checkpoints: how a shard treats coordinators that come and go, and a server that
// is stopped with everything saved and started again.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/model/wire_model.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/threads/mutex.h"
#include "tests/ps_server/server_fixture.h"

namespace weir {
namespace {

using Catch::Contains;

// An empty folder of the test's own.
std::string NewFolder(const std::string& name) {
  const char* const root = std::getenv("TEST_TMPDIR");
  const std::filesystem::path folder = std::filesystem::path(root == nullptr ? "/tmp" : root) / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder.string();
}

// Adds the fields that a config from a file has.
v1::JobConfig WithCheckpoints(v1::JobConfig config, const std::string& folder) {
  config.mutable_model()->add_layers()->set_type(v1::LayerConfig::LAYER_RELU);
  config.mutable_data()->set_format(v1::DataConfig::FORMAT_DIGITS);
  config.mutable_checkpoint()->set_directory(folder);
  return config;
}

// ps:1 alone, without a coordinator of its own.
struct LoneServer {
  explicit LoneServer(double server_wait_seconds, double lease_seconds = 60)
      : LoneServer(WithCheckpoints(ServerFixture().config, NewFolder("lone")), server_wait_seconds,
                   lease_seconds) {}
  // `coordinator_address`: where ps:0 should be.
  LoneServer(const v1::JobConfig& config, double server_wait_seconds, double lease_seconds,
             const std::string& coordinator_address = "") {
    Server::Options options;
    options.config = config;
    options.config.mutable_cluster()->set_server_wait_seconds(server_wait_seconds);
    options.config.mutable_cluster()->set_lease_seconds(lease_seconds);
    options.index = 1;
    options.coordinator_address = coordinator_address;
    options.own_address = "127.0.0.1:0";
    auto started = Server::Start(options);
    REQUIRE(started.ok());
    server = *std::move(started);
    stub =
        v1::ShardControl::NewStub(grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  }

  std::unique_ptr<Server> server;
  std::unique_ptr<v1::ShardControl::Stub> stub;
};

// A coordinator's stream, driven by hand.
struct Stream {
  Stream(LoneServer& server, uint64_t incarnation) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    call = server.stub->Attach(&context);
    v1::ControlMessage message;
    message.mutable_hello()->set_coordinator_incarnation(incarnation);
    call->Write(message);
  }
  ~Stream() {
    context.TryCancel();
    if (!finished) End();
  }

  // The stream is attached.
  bool Attached() {
    v1::ShardReport report;
    return call->Read(&report) && report.has_attached();
  }
  grpc::Status End() {
    v1::ShardReport report;
    while (call->Read(&report)) {
    }
    finished = true;
    return call->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ControlMessage, v1::ShardReport>> call;
  bool finished = false;
};

// ps:0 as far as it takes announcements.
class Announcements final : public v1::Coordinator::Service {
 public:
  Announcements() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  const std::string& address() const { return address_; }
  grpc::Status Announce(grpc::ServerContext*, const v1::AnnounceRequest* request,
                        v1::AnnounceReply* reply) override {
    *reply->mutable_protocol() = OwnProtocol();
    MutexLock lock(mutex_);
    requests_.push_back(*request);
    changed_.NotifyAll();
    return grpc::Status::OK;
  }
  // The announcements so far, once there are this many more than now; fewer if that takes too long.
  std::vector<v1::AnnounceRequest> Wait(size_t more) {
    MutexLock lock(mutex_);
    const size_t wanted = requests_.size() + more;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (requests_.size() < wanted && changed_.WaitUntil(mutex_, deadline)) {
    }
    return requests_;
  }

 private:
  std::string address_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<v1::AnnounceRequest> requests_ ABSL_GUARDED_BY(mutex_);
  // Last: its destructor waits for calls.
  std::unique_ptr<grpc::Server> server_;
};

// Adds a path where a message of an earlier version had one.
void AddPath(google::protobuf::Message* message, const std::string& path) {
  message->GetReflection()->MutableUnknownFields(message)->AddLengthDelimited(1, path);
}

TEST_CASE("A server writes and reads in the folders of its own config, whatever a coordinator asks for") {
  const std::string own = NewFolder("own"), others = NewFolder("others");
  FileSystem& files = FileSystem::Posix();
  v1::JobConfig config = WithCheckpoints(ServerFixture().config, own);
  LoneServer server(config, 20, 60);
  config = WithCheckpoints(ServerFixture().config, own);
  config.mutable_cluster()->set_server_wait_seconds(20);
  config.mutable_cluster()->set_lease_seconds(60);
  Stream stream(server, 1);
  REQUIRE(stream.Attached());
  const auto report = [&](v1::ShardReport::ReportCase kind) {
    v1::ShardReport report;
    while (report.report_case() != kind) REQUIRE(stream.call->Read(&report));
    return report;
  };
  v1::ControlMessage message;
  v1::Install& install = *message.mutable_install();
  install.set_num_shards(2);
  install.set_shard(1);
  *install.mutable_model() = ToProto(ServerFixture().model);
  install.set_job_config(config.SerializeAsString());
  install.set_workers(1);
  install.set_parts(1);
  stream.call->Write(message);
  REQUIRE(report(v1::ShardReport::kInstalled).installed().error() == "");

  for (const std::string& folder : {own, others}) REQUIRE(BeginCheckpoint(files, folder, 0).ok());
  v1::ControlMessage take;
  take.mutable_checkpoint()->set_step(0);
  AddPath(take.mutable_checkpoint(), others);
  stream.call->Write(take);
  CHECK(report(v1::ShardReport::kCheckpoint).checkpoint().error() == "");
  CHECK(files.List(CheckpointFolder(others, 0))->empty());
  CHECK(files.List(CheckpointFolder(own, 0))->size() == 1);

  // Nor does the server read folders that others name.
  AddPath(install.mutable_restore(), CheckpointFolder(others, 0));
  stream.call->Write(message);
  const std::string refused = report(v1::ShardReport::kInstalled).installed().error();
  CHECK_THAT(refused, Contains(own) && !Contains(others));
  install.mutable_restore()->set_init_from(true);
  stream.call->Write(message);
  CHECK_THAT(report(v1::ShardReport::kInstalled).installed().error(),
             Contains("this server's config has no checkpoint.init_from"));

  // A stranger learns only which field of the config differs.
  config.mutable_optimizer()->set_learning_rate(0.25f);
  install.set_job_config(config.SerializeAsString());
  stream.call->Write(message);
  CHECK(report(v1::ShardReport::kInstalled).installed().error() ==
        "its config differs from that of ps:0 in optimizer.learning_rate; its log says how");
}

TEST_CASE("A coordinator may attach again, in a later incarnation too; an earlier one is refused") {
  LoneServer server(20);
  auto first = std::make_unique<Stream>(server, 2);
  REQUIRE(first->Attached());
  {
    Stream again(server, 2);  // the coordinator has lost its stream, though the shard has not noticed
    REQUIRE(again.Attached());
    CHECK(first->End().error_code() == grpc::StatusCode::UNAVAILABLE);
    Stream old(server, 1);
    CHECK(old.End().error_code() == grpc::StatusCode::FAILED_PRECONDITION);
    Stream later(server, 3);
    REQUIRE(later.Attached());
    CHECK(again.End().error_code() == grpc::StatusCode::UNAVAILABLE);
    Stream outdated(server, 2);
    CHECK(outdated.End().error_code() == grpc::StatusCode::FAILED_PRECONDITION);
    v1::ControlMessage ping;
    ping.mutable_ping()->set_sequence(4);
    later.call->Write(ping);
    v1::ShardReport report;
    REQUIRE(later.call->Read(&report));
    CHECK(report.stats().sequence() == 4);
  }
  // The coordinator's stream has ended; the shard waits, and accepts the next one.
  Stream last(server, 3);
  REQUIRE(last.Attached());
  v1::ControlMessage shutdown;
  SetFailure(Drained("all is saved"), shutdown.mutable_shutdown());
  last.call->Write(shutdown);
  CHECK(KindOf(server.server->Wait()) == v1::FAILURE_DRAINED);
}

TEST_CASE(
    "A server that has had the last ping hears of the end on another stream, also without checkpoints") {
  LoneServer server(ServerFixture().config, 20, 60);
  auto first = std::make_unique<Stream>(server, 1);
  REQUIRE(first->Attached());
  Stream(server, 1).End();  // refused
  v1::ControlMessage ping;
  ping.mutable_ping()->set_sequence(4);
  ping.mutable_ping()->set_last(true);
  first->call->Write(ping);
  v1::ShardReport report;
  REQUIRE(first->call->Read(&report));
  CHECK(report.stats().sequence() == 4);
  SECTION("whose first one it knows to be broken") { first.reset(); }
  SECTION("whose first one it takes to be whole") {}
  Stream again(server, 1);
  REQUIRE(again.Attached());
  v1::ControlMessage shutdown;
  shutdown.mutable_shutdown();
  again.call->Write(shutdown);
  CHECK(again.End().ok());
  CHECK(server.server->Wait().ok());
}

TEST_CASE("A server announces itself also to a ps:0 that may have replaced its coordinator") {
  Announcements first;
  v1::JobConfig config = WithCheckpoints(ServerFixture().config, NewFolder("announced"));
  config.mutable_cluster()->set_start_seconds(2);
  LoneServer server(config, 20, 60, first.address());
  REQUIRE(first.Wait(1).size() > 0);
  Stream stream(server, 1);
  REQUIRE(stream.Attached());
  // One call may have been under way when the coordinator attached.
  const size_t before = first.Wait(0).size();
  const std::vector<v1::AnnounceRequest> requests = first.Wait(2);
  REQUIRE(requests.size() >= before + 2);
  CHECK(requests.back().shard() == 1);
  CHECK(requests.back().address() == server.server->address());
  CHECK(requests.back().instance() == requests.front().instance());
}

TEST_CASE("A coordinator that does not come back in time is lost") {
  LoneServer server(0.2);
  {
    Stream stream(server, 1);
    REQUIRE(stream.Attached());
  }
  const absl::Status status = server.server->Wait();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(status.message()), Contains("did not come back") && Contains("server_wait_seconds"));
}

TEST_CASE("A server that missed the end of the job finds it where it is saved, and ends with it") {
  const bool attached = GENERATE(true, false);
  ServerFixture f;
  f.config = WithCheckpoints(f.config, NewFolder("missed"));
  f.config.mutable_train()->set_examples(16);
  f.Start();
  f.Join();
  f.TrainStep();
  v1::CheckpointReply reply;
  REQUIRE(f.coordinator->Checkpoint(f.Context().get(), {}, &reply).ok());
  const auto lose = [&](const v1::JobConfig& config) {
    LoneServer server(config, 0.2, 60);
    if (attached) REQUIRE(std::make_unique<Stream>(server, 1)->Attached());
    return server.server->Wait();
  };
  v1::JobConfig config = f.config;
  config.mutable_cluster()->set_start_seconds(0.5);
  CHECK(lose(config).code() == absl::StatusCode::kUnavailable);  // the server goes on
  f.TrainStep();
  v1::LeaveRequest leave;
  *leave.mutable_caller() = f.caller;
  leave.set_done(true);
  v1::LeaveReply left;
  CHECK(f.coordinator->Leave(f.Context().get(), leave, &left).ok());
  CHECK(f.cluster->Wait().ok());
  config.mutable_cluster()->set_start_seconds(60);
  CHECK(lose(config).ok());
  // For a longer job that checkpoint is not the end.
  config.mutable_cluster()->set_start_seconds(0.5);
  config.mutable_train()->set_examples(24);
  CHECK(lose(config).code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("A coordinator that falls silent may attach again") {
  LoneServer server(20, 0.2);
  Stream silent(server, 1);
  REQUIRE(silent.Attached());
  const grpc::Status status = silent.End();
  CHECK(status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK_THAT(status.error_message(), Contains("nothing was heard"));
  Stream again(server, 1);
  CHECK(again.Attached());
}

TEST_CASE("A job that was drained goes on where it was") {
  const std::string folder = NewFolder("drained");
  {
    ServerFixture f(1000, 2);
    f.config = WithCheckpoints(f.config, folder);
    f.Start();
    f.Join();
    v1::CheckpointReply reply;
    CHECK(f.coordinator->Checkpoint(f.Context().get(), {}, &reply).ok());
    CHECK_THAT(reply.directory(), Contains(folder));
    f.cluster->server(0)->Drain("a test stops it");
    CHECK(KindOf(f.cluster->server(0)->Wait()) == v1::FAILURE_DRAINED);
    CHECK(KindOf(f.cluster->server(1)->Wait()) == v1::FAILURE_DRAINED);
  }
  const auto found = LatestComplete(FileSystem::Posix(), folder);
  REQUIRE(found.ok());
  CHECK(found->manifest.files_size() == 2);
}

TEST_CASE("One server's steps survive its end") {
  const std::string folder = NewFolder("survive");
  uint64_t clock = 0;
  for (int start = 0; start < 3; ++start) {
    ServerFixture f;
    f.config = WithCheckpoints(f.config, folder);
    f.Start();
    f.clock = clock;
    f.Join();
    for (int step = 0; step < 2; ++step) f.TrainStep();
    clock = f.clock;
    f.cluster->server(0)->Drain("a test stops it");
    CHECK(KindOf(f.cluster->Wait()) == v1::FAILURE_DRAINED);
  }
  CHECK(clock == 6);
}

TEST_CASE("A server that comes back at its address is restored, and in sync the others go back with it") {
  ServerFixture f(1000, 2);
  f.config = WithCheckpoints(f.config, NewFolder("back"));
  f.config.mutable_cluster()->set_server_wait_seconds(20);
  f.Start();
  f.Join();
  const uint64_t incarnation = f.base.incarnation();
  v1::CheckpointReply reply;
  REQUIRE(f.coordinator->Checkpoint(f.Context().get(), {}, &reply).ok());
  Server::Options options;
  options.config = f.config;
  options.index = 1;
  options.listen = f.cluster->addresses()[1];
  f.cluster->StopServer(1);
  const auto back = Server::Start(options);
  REQUIRE(back.ok());
  f.raw_stream = nullptr;
  v1::HeartbeatRequest heartbeat;
  *heartbeat.mutable_caller() = f.caller;
  v1::HeartbeatReply beat;
  while (!beat.fenced()) REQUIRE(f.coordinator->Heartbeat(f.Context().get(), heartbeat, &beat).ok());
  f.Join();  // another incarnation of the worker
  CHECK(f.base.incarnation() != incarnation);
  CHECK(f.base.count() == 0);
  v1::ClusterStatus status;
  REQUIRE(f.coordinator->Status(f.Context().get(), {}, &status).ok());
  CHECK(status.recoveries() == 1);
  CHECK(status.state() == v1::RUNNING);
  f.cluster->server(0)->Drain("a test stops it");
  CHECK(KindOf(f.cluster->server(0)->Wait()) == v1::FAILURE_DRAINED);
  CHECK(KindOf((*back)->Wait()) == v1::FAILURE_DRAINED);
}

TEST_CASE("A server that is to stop without checkpoints stops at once") {
  ServerFixture f;
  f.Start();
  f.Join();
  f.cluster->server(0)->Drain("a test stops it");
  const absl::Status status = f.cluster->Wait();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(status.message()), Contains("a test stops it"));
}

}  // namespace
}  // namespace weir

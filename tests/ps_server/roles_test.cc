// Who may call what: the whole table, with real certificates, against real servers.
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/limits.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/health.grpc.pb.h"
#include "proto/parameter_server.grpc.pb.h"
#include "proto/shard_control.grpc.pb.h"
#include "ps_server/grpc/rpc_roles.h"
#include "ps_server/process/server.h"
#include "tests/common/grpc_generic_call.h"
#include "tests/common/telemetry/http_client.h"
#include "tests/common/test_certificates.h"

namespace weir {
namespace {

using Catch::Contains;

// What each refusal by the table says.
const std::string kTable = "docs/security.md";

// The RPCs of all services that a server has.
std::vector<std::string> Methods() {
  std::vector<std::string> methods;
  for (const google::protobuf::Descriptor* message :
       {v1::JoinRequest::descriptor(), v1::ExchangeRequest::descriptor(), v1::ControlMessage::descriptor(),
        grpc::health::v1::HealthCheckRequest::descriptor()}) {
    const google::protobuf::FileDescriptor* const file = message->file();
    REQUIRE(file->service_count() > 0);
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.push_back(file->service(s)->full_name() + "/" + file->service(s)->method(m)->name());
      }
    }
  }
  return methods;
}

// Two servers of job "j" with TLS, ps:0 also with HTTP.
class Cluster {
 public:
  Cluster() : folder_(MakeFolder()), certificates(folder_, "ca") {
    for (uint32_t index = 0; index < 2; ++index) {
      Server::Options options;
      options.index = index;
      options.tls = certificates.IssueTls({"j", Role::kServer, index});
      options.config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_SYNC);
      options.config.mutable_data()->set_batch_size(8);
      options.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_SGD);
      options.workers = 8;
      if (index == 0) options.http_port = 0;
      auto server = Server::Start(std::move(options));
      INFO(server.status());
      REQUIRE(server.ok());
      servers.push_back(*std::move(server));
    }
  }

  // Calls any method with one message, streams included. A call that is parked ends with its deadline.
  grpc::Status Call(const Identity& as, uint32_t server, const std::string& method,
                    const google::protobuf::Message& message) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    grpc::ByteBuffer reply;
    grpc::Status status =
        CallWithOneMessage(StubOf(as, server), context, method, message.SerializeAsString(), &reply);
    // A reply of Exchange carries its error.
    v1::ExchangeReply exchanged;
    if (status.ok() && method == "weir.v1.ParameterServer/Exchange" &&
        grpc::SerializationTraits<v1::ExchangeReply>::Deserialize(&reply, &exchanged).ok() &&
        exchanged.has_error()) {
      return {static_cast<grpc::StatusCode>(exchanged.error().code()), exchanged.error().message()};
    }
    return status;
  }

 private:
  static std::string MakeFolder() {
    const char* parent = std::getenv("TEST_TMPDIR");
    std::string path = std::string(parent == nullptr ? "/tmp" : parent) + "/roles-XXXXXX";
    REQUIRE(mkdtemp(path.data()) != nullptr);
    return path;
  }
  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  grpc::GenericStub& StubOf(const Identity& as, uint32_t server) {
    std::unique_ptr<grpc::GenericStub>& stub = stubs_[as.ToUri() + std::to_string(server)];
    if (stub == nullptr) {
      const TlsFiles files = certificates.Issue(as, as.ToDns() + ".caller");
      grpc::ChannelArguments arguments;
      arguments.SetSslTargetNameOverride(Identity{"j", Role::kServer, server}.ToDns());
      stub = std::make_unique<grpc::GenericStub>(grpc::CreateCustomChannel(
          servers[server]->address(),
          grpc::SslCredentials({Read(files.ca), Read(files.key), Read(files.certificate)}), arguments));
    }
    return *stub;
  }

  const std::string folder_;
  std::map<std::string, std::unique_ptr<grpc::GenericStub>> stubs_;

 public:
  const TestCertificates certificates;
  std::vector<std::unique_ptr<Server>> servers;
};

v1::Caller CallerFor(const Speaker& speaker) {
  v1::Caller caller;
  caller.set_worker(speaker.role == Role::kReader ? kFirstReader + 5 : speaker.index);
  return caller;
}

template <typename Request>
std::unique_ptr<google::protobuf::Message> WithCaller(const Speaker& speaker) {
  auto request = std::make_unique<Request>();
  *request->mutable_caller() = CallerFor(speaker);
  return request;
}

// A message of the method that speaks for `speaker`.
std::unique_ptr<google::protobuf::Message> MessageOf(const std::string& method, const Speaker& speaker) {
  const std::string name = method.substr(method.find('/') + 1);
  if (name == "Join") {
    auto request = std::make_unique<v1::JoinRequest>();
    request->set_role(speaker.role == Role::kReader ? v1::READER : v1::WORKER);
    request->set_rank(speaker.index);
    return request;
  }
  if (name == "Heartbeat") return WithCaller<v1::HeartbeatRequest>(speaker);
  if (name == "Leave") return WithCaller<v1::LeaveRequest>(speaker);
  if (name == "NextRange") return WithCaller<v1::NextRangeRequest>(speaker);
  if (name == "Pin") return WithCaller<v1::PinRequest>(speaker);
  if (name == "Unpin") return WithCaller<v1::UnpinRequest>(speaker);
  if (name == "Report") return WithCaller<v1::ReportRequest>(speaker);
  if (name == "Stop") return WithCaller<v1::StopRequest>(speaker);
  if (name == "Announce") {
    auto request = std::make_unique<v1::AnnounceRequest>();
    request->set_shard(speaker.index);
    return request;
  }
  if (name == "Exchange") {
    auto request = std::make_unique<v1::ExchangeRequest>();
    request->set_id(1);
    *request->mutable_pull()->mutable_caller() = CallerFor(speaker);
    return request;
  }
  return std::make_unique<v1::StatusRequest>();  // no bytes: any message without fields
}

bool Refused(const grpc::Status& status) { return status.error_message().find(kTable) != std::string::npos; }

// For whom a caller could speak; the first is itself.
std::vector<Speaker> SpeakersFor(const Identity& caller, const std::string& method) {
  if (method == "weir.v1.Coordinator/Announce") {
    return {{Role::kServer, caller.index}, {Role::kServer, caller.index + 1}};
  }
  if (caller.role == Role::kReader) return {{Role::kReader, 0}, {Role::kWorker, 0}};
  return {{Role::kWorker, caller.index}, {Role::kWorker, caller.index + 1}, {Role::kReader, 0}};
}

TEST_CASE("every RPC has a row, and no other has one") {
  std::vector<std::string> rows;
  for (const RpcRule& rule : RpcRules()) rows.emplace_back(rule.method);
  const std::vector<std::string> methods = Methods();
  CHECK(std::set<std::string>(rows.begin(), rows.end()) ==
        std::set<std::string>(methods.begin(), methods.end()));
  CHECK(rows.size() == methods.size());
}

TEST_CASE("the page has the table") {
  std::ostringstream page;
  page << std::ifstream("docs/security.md").rdbuf();
  INFO("docs/security.md must contain:\n" << RpcRolesTable());
  CHECK(page.str().find("\n" + RpcRolesTable() + "\n") != std::string::npos);
}

TEST_CASE("each role may do what the table says, as itself alone") {
  Cluster cluster;
  for (const Identity& caller :
       {Identity{"j", Role::kWorker, 1}, Identity{"j", Role::kServer, 0}, Identity{"j", Role::kServer, 1},
        Identity{"j", Role::kReader, 0}, Identity{"j", Role::kAdmin, 0}}) {
    for (const RpcRule& rule : RpcRules()) {
      const std::string method(rule.method);
      const uint32_t server = method.find("ShardControl") != std::string::npos ? 1 : 0;
      const Access access = rule.of(caller.role);
      bool self = true;
      for (const Speaker& speaker : SpeakersFor(caller, method)) {
        const bool allowed = access == Access::kYes || (access == Access::kSelf && self) ||
                             (access == Access::kCoordinator && caller.index == 0);
        const grpc::Status status = cluster.Call(caller, server, method, *MessageOf(method, speaker));
        INFO(caller.ToUri() << " calls " << method << (self ? " for itself" : " for another") << ": "
                            << status.error_code() << " " << status.error_message());
        CHECK(Refused(status) == !allowed);
        if (!allowed) CHECK(status.error_code() == grpc::StatusCode::PERMISSION_DENIED);
        if (allowed) CHECK(status.error_code() != grpc::StatusCode::UNAUTHENTICATED);
        self = false;
      }
    }
  }
  // A reader's push is refused where its pull is not.
  v1::ExchangeRequest push;
  push.set_id(1);
  *push.mutable_push()->mutable_caller() = CallerFor({Role::kReader, 0});
  push.mutable_push()->set_refused("x");
  const grpc::Status pushed =
      cluster.Call({"j", Role::kReader, 0}, 0, "weir.v1.ParameterServer/Exchange", push);
  CHECK(pushed.error_code() == grpc::StatusCode::PERMISSION_DENIED);
  CHECK_THAT(pushed.error_message(), Contains("may pull, but not push"));
}

TEST_CASE("a certificate of another job, or without an identity, admits to nothing") {
  Cluster cluster;
  const grpc::Status other =
      cluster.Call({"k", Role::kAdmin, 0}, 0, "weir.v1.Coordinator/Status", v1::StatusRequest());
  CHECK(other.error_code() == grpc::StatusCode::UNAUTHENTICATED);
  CHECK_THAT(other.error_message(), Contains("spiffe://k/admin; this is a server of job j"));
  // Health is for everybody whose certificate the CA has made.
  CHECK(cluster.Call({"k", Role::kAdmin, 0}, 0, "grpc.health.v1.Health/Check", v1::StatusRequest()).ok());
  // Both kinds are counted.
  for (int i = 0; i < 3; ++i) {
    cluster.Call({"j", Role::kReader, 0}, 0, "weir.v1.Coordinator/Checkpoint", v1::CheckpointRequest());
  }
  const std::string metrics = HttpGet(cluster.servers[0]->http_port(), "/metrics");
  CHECK_THAT(metrics, Contains("weir_calls_refused_total{shard=\"0\",reason=\"unauthenticated\"} 1\n"));
  CHECK_THAT(metrics, Contains("weir_calls_refused_total{shard=\"0\",reason=\"permission_denied\"} 3\n"));
  CHECK_THAT(metrics, Contains("weir_certificate_expiry_timestamp_seconds{shard=\"0\"} 1"));
}

}  // namespace
}  // namespace weir

#include "tests/chaos/grpc_attacker.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/system/unique_fd.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/parameter_server.grpc.pb.h"
#include "proto/shard_control.grpc.pb.h"
#include "tests/ps_server/http2_client.h"

namespace weir {
namespace {

using std::chrono::milliseconds;

// The pause between two acts.
constexpr milliseconds kPace{10};
// Connections and streams that the attacker holds at once.
constexpr size_t kHeld = 100;
// Connections of a crowd. Two attackers hold 500.
constexpr size_t kCrowd = 250;
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
// An identifier that no member has.
constexpr uint64_t kFar = uint64_t{1} << 60;

std::shared_ptr<grpc::Channel> Connect(const std::string& address, int connection = 0) {
  grpc::ChannelArguments own;
  own.SetInt("weir.test.connection", connection);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own);
}

void SetDeadline(grpc::ClientContext& context, milliseconds limit = milliseconds(500)) {
  context.set_deadline(std::chrono::system_clock::now() + limit);
}

UniqueFd Dial(const std::string& address) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &port) ||
      inet_pton(AF_INET, parts[0].c_str(), &at.sin_addr) != 1) {
    return UniqueFd();
  }
  at.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) return UniqueFd();
  return fd;
}

bool SendAll(const UniqueFd& fd, const std::string& bytes) {
  return send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

// The peer has closed the connection. Drops what the peer has sent.
bool IsClosed(const UniqueFd& fd) {
  char bytes[4096];
  const ssize_t got = recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

v1::Model HugeModel() {
  v1::Model model;
  v1::Tensor& tensor = *model.add_tensors();
  tensor.set_name("w");
  tensor.add_shape(int64_t{1} << 33);
  return model;
}

v1::JoinRequest Join(v1::Role role, uint32_t rank, uint64_t instance) {
  v1::JoinRequest request;
  request.set_role(role);
  request.set_task("worker:0");
  request.set_rank(rank);
  request.set_instance(instance);
  request.set_train_examples(kFar);
  request.add_ps_addresses("127.0.0.1:1");
  request.set_model(HugeModel().SerializeAsString());
  return request;
}

struct OpenStream {
  OpenStream(const std::string& address, int connection)
      : stub(v1::ParameterServer::NewStub(Connect(address, connection))) {
    SetDeadline(context, milliseconds(60'000));
    call = stub->Exchange(&context);
  }
  ~OpenStream() { context.TryCancel(); }
  std::unique_ptr<v1::ParameterServer::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ExchangeRequest, v1::ExchangeReply>> call;
};

struct Kind {
  const char* name;
  const char* what;
};
constexpr Kind kKinds[] = {
    {"control",
     "speaks to the servers as a coordinator would: Hello, Install, checkpoints, the end of the job"},
    {"joins", "joins as worker and reader, of models of any size, and goes away"},
    {"members", "speaks for members: heartbeats, leave-takings, ranges, reports, addresses of servers"},
    {"pins", "pins versions for as long as it may, and never lets go"},
    {"streams", "opens exchanges of any declared size, and neither sends nor reads on"},
    {"connections", "opens connections that say nothing, nonsense, or half of a handshake"},
    {"crowd", "holds 250 connections: idle, half open, slow, in a TLS handshake that never ends"},
    {"halves",
     "begins requests of any declared size that never end, and sends small ones that unpack to large ones"},
    {"http", "sends endless headers, ranges without number, and requests that never end"},
};

}  // namespace

const std::vector<std::string>& Attacker::Kinds() {
  static const std::vector<std::string>* const kinds = [] {
    auto* all = new std::vector<std::string>;
    for (const Kind& kind : kKinds) all->push_back(kind.name);
    return all;
  }();
  return *kinds;
}

std::string Attacker::Describe(const std::string& kind) {
  for (const Kind& known : kKinds) {
    if (kind == known.name) return known.what;
  }
  return "";
}

void Attacker::Run(const std::string& kind, const std::atomic<bool>& stop) {
  if (kind == "control") return AttackControl(stop);
  if (kind == "joins") return AttackJoins(stop);
  if (kind == "members") return AttackMembers(stop);
  if (kind == "pins") return AttackPins(stop);
  if (kind == "streams") return AttackStreams(stop);
  if (kind == "connections") return AttackConnections(stop);
  if (kind == "crowd") return HoldCrowd(stop);
  if (kind == "halves") return HoldHalves(stop);
  if (kind == "http") return AttackHttp(stop);
}

void Attacker::AttackControl(const std::atomic<bool>& stop) {
  std::vector<std::unique_ptr<v1::ShardControl::Stub>> controls;
  for (const std::string& server : target_.servers) {
    controls.push_back(v1::ShardControl::NewStub(Connect(server)));
  }
  const auto coordinator = v1::Coordinator::NewStub(Connect(target_.servers[0]));
  for (uint64_t i = 0; !stop; ++i) {
    for (const auto& control : controls) {
      grpc::ClientContext context;
      SetDeadline(context);
      const auto stream = control->Attach(&context);
      v1::ControlMessage hello, message;
      hello.mutable_hello()->set_coordinator_incarnation(kFar + i);
      stream->Write(hello);
      switch (i % 4) {
        case 0: {
          v1::Install& install = *message.mutable_install();
          install.set_num_shards(1);
          *install.mutable_model() = HugeModel();
          break;
        }
        case 1:
          message.mutable_checkpoint()->set_step(i);
          break;
        case 2:
          message.mutable_membership()->mutable_membership()->set_epoch(kFar);
          break;
        default:
          message.mutable_shutdown()->set_failure("a stranger says so");
      }
      stream->Write(message);
      v1::ShardReport report;
      acts_.Count("attach", stream->Read(&report));
      context.TryCancel();
      stream->Finish();
    }
    grpc::ClientContext context;
    SetDeadline(context);
    v1::CheckpointReply reply;
    acts_.Count("checkpoint", coordinator->Checkpoint(&context, v1::CheckpointRequest(), &reply).ok());
    std::this_thread::sleep_for(kPace);
  }
}

void Attacker::AttackJoins(const std::atomic<bool>& stop) {
  const auto coordinator = v1::Coordinator::NewStub(Connect(target_.servers[0]));
  for (uint64_t i = 0; !stop; ++i) {
    grpc::ClientContext context;
    SetDeadline(context, milliseconds(50));
    v1::JoinRequest request =
        Join(i % 3 == 0 ? v1::READER : v1::WORKER, static_cast<uint32_t>(i % 7), kFar + i);
    if (i % 4 == 1) {
      v1::Model model = HugeModel();
      for (int t = 0; t < 20'000; ++t) {
        v1::Tensor& tensor = *model.add_tensors();
        tensor.set_name(absl::StrCat("tensor ", t));
        for (int d = 0; d < 8; ++d) tensor.add_shape(int64_t{1} << 40);
      }
      request.set_model(model.SerializeAsString());
    }
    if (i % 4 == 2) request.set_task(std::string(1 << 20, 'w'));
    v1::JoinReply reply;
    acts_.Count("join", coordinator->Join(&context, request, &reply).ok());
    std::this_thread::sleep_for(kPace);
  }
}

void Attacker::AttackMembers(const std::atomic<bool>& stop) {
  const auto coordinator = v1::Coordinator::NewStub(Connect(target_.servers[0]));
  const auto call = [&](auto method, const auto& request, auto reply) {
    grpc::ClientContext context;
    SetDeadline(context, milliseconds(100));
    const bool answered = ((*coordinator).*method)(&context, request, &reply).ok();
    return answered ? std::make_optional(reply) : std::nullopt;
  };
  using Stub = v1::Coordinator::Stub;
  for (uint64_t i = 0; !stop; ++i) {
    v1::Caller caller;
    caller.set_worker(static_cast<uint32_t>(i % 5));
    caller.set_incarnation(i % 40);
    caller.set_epoch(kFar);
    v1::LeaveRequest leave;
    *leave.mutable_caller() = caller;
    leave.set_reason("training diverged, a stranger says");
    leave.set_failure_kind(v1::FAILURE_DIVERGED);
    // A caller that is not a member gets OK: it is out already.
    call(&Stub::Leave, leave, v1::LeaveReply());
    acts_.Count("leave", false);
    v1::NextRangeRequest range;
    *range.mutable_caller() = caller;
    for (uint64_t done = 0; done < 1000; ++done) range.add_completed_ranges(done);
    const auto given = call(&Stub::NextRange, range, v1::NextRangeReply());
    acts_.Count("range", given.has_value() && !given->fenced());
    v1::ReportRequest report;
    *report.mutable_caller() = caller;
    report.mutable_evaluation()->set_final(true);
    report.mutable_evaluation()->set_weights_sha256(std::string(1 << 16, 'f'));
    acts_.Count("report", call(&Stub::Report, report, v1::ReportReply()).has_value());
    v1::AnnounceRequest announce;
    announce.set_shard(1);
    announce.set_address("127.0.0.1:1");
    announce.set_instance(kFar);
    acts_.Count("announce", call(&Stub::Announce, announce, v1::AnnounceReply()).has_value());
    std::this_thread::sleep_for(kPace);
  }
}

void Attacker::AttackPins(const std::atomic<bool>& stop) {
  const auto coordinator = v1::Coordinator::NewStub(Connect(target_.servers[0]));
  std::deque<OpenStream> readers;
  for (uint64_t i = 0; !stop; ++i) {
    v1::PinRequest pin;
    pin.mutable_caller()->set_worker(static_cast<uint32_t>(i % 5));
    pin.mutable_caller()->set_incarnation(i % 40);
    pin.set_lease_seconds(600);
    v1::PinReply pinned;
    {
      grpc::ClientContext context;
      SetDeadline(context, milliseconds(100));
      acts_.Count("pin", coordinator->Pin(&context, pin, &pinned).ok());
    }
    // Pulls the pinned version, but never reads the stream.
    if (readers.size() >= kHeld) readers.pop_front();
    OpenStream& reader =
        readers.emplace_back(target_.servers[i % target_.servers.size()], static_cast<int>(readers.size()));
    v1::ExchangeRequest request;
    request.set_id(1);
    *request.mutable_pull()->mutable_caller() = pin.caller();
    request.mutable_pull()->set_pin(pinned.pin() == 0 ? i + 1 : pinned.pin());
    reader.call->Write(request);
    std::this_thread::sleep_for(kPace);
  }
}

void Attacker::AttackStreams(const std::atomic<bool>& stop) {
  std::deque<OpenStream> streams;
  for (uint64_t i = 0; !stop; ++i) {
    if (streams.size() >= kHeld) streams.pop_front();
    OpenStream& stream =
        streams.emplace_back(target_.servers[i % target_.servers.size()], static_cast<int>(i % kHeld));
    for (uint64_t id = 1; id <= 20; ++id) {
      v1::ExchangeRequest request;
      request.set_id(i % 5 == 4 ? 21 - id : id);
      v1::PushRequest& push = *request.mutable_push();
      push.mutable_caller()->set_worker(static_cast<uint32_t>(i % 5));
      push.mutable_caller()->set_incarnation(i % 40);
      push.set_clock(id % 3 == 0 ? kFar : id);
      push.set_elements(id % 2 == 0 ? kFar : 1);
      push.set_examples(1);
      push.mutable_base()->set_count(kFar);
      if (id % 4 == 0) request.set_gradient(std::string(1 << 18, '\xff'));
      if (id % 5 == 0) request.mutable_shared()->set_bytes(kFar);
      if (!stream.call->Write(request)) break;
    }
    acts_.Count();
    std::this_thread::sleep_for(kPace);
  }
}

void Attacker::AttackConnections(const std::atomic<bool>& stop) {
  std::deque<UniqueFd> held;
  const std::string preface = kPreface;
  for (uint64_t i = 0; !stop; ++i) {
    if (held.size() >= 2 * kHeld) held.pop_front();
    UniqueFd fd = Dial(target_.servers[i % target_.servers.size()]);
    acts_.Count();
    if (fd.valid()) {
      switch (i % 4) {
        case 0:
          break;
        case 1:
          SendAll(fd, std::string(1 << 16, '\xa5'));
          break;
        case 2:
          SendAll(fd, preface.substr(0, i % preface.size()));
          break;
        default:
          // The largest frame allowed, whose content never comes.
          SendAll(fd, preface + std::string("\xff\xff\xff\x00\x00\x00\x00\x00\x01", 9));
      }
      held.push_back(std::move(fd));
    }
    std::this_thread::sleep_for(kPace);
  }
}

void Attacker::HoldCrowd(const std::atomic<bool>& stop) {
  // The begin of a TLS record of 512 bytes, which holds a ClientHello of 508.
  const std::string hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  // An HTTP/2 connection as it should be: a SETTINGS frame without settings follows the preface.
  const std::string http2 = kPreface + std::string("\x00\x00\x00\x04\x00\x00\x00\x00\x00", 9);
  // A frame of 16 KiB for stream 1, whose bytes come one by one.
  const std::string slow = http2 + std::string("\x00\x40\x00\x01\x04\x00\x00\x00\x01", 9);
  const std::string beginnings[] = {"", http2.substr(0, 10), hello, http2, slow};
  std::vector<UniqueFd> crowd(kCrowd);
  while (!stop) {
    for (size_t i = 0; i < crowd.size() && !stop; ++i) {
      const size_t kind = i % std::size(beginnings);
      UniqueFd& fd = crowd[i];
      // A server that has enough of a connection resets it.
      const bool open = fd.valid() && (kind != 4 || SendAll(fd, "x")) && !IsClosed(fd);
      if (open) continue;
      fd = Dial(target_.servers[i % target_.servers.size()]);
      if (fd.valid() && !beginnings[kind].empty()) SendAll(fd, beginnings[kind]);
      acts_.Count();
    }
    std::this_thread::sleep_for(10 * kPace);
  }
}

void Attacker::HoldHalves(const std::atomic<bool>& stop) {
  static constexpr const char* kMethods[] = {"weir.v1.Coordinator/Status", "weir.v1.ParameterServer/Exchange",
                                             "grpc.health.v1.Health/Watch"};
  grpc::ChannelArguments compressed;
  compressed.SetCompressionAlgorithm(GRPC_COMPRESS_GZIP);
  const auto coordinator = v1::Coordinator::NewStub(
      grpc::CreateCustomChannel(target_.servers[0], grpc::InsecureChannelCredentials(), compressed));
  v1::LeaveRequest leave;
  leave.set_reason(std::string(2 << 20, 'x'));
  // A message of almost 4 GiB begins.
  const std::string begin = std::string("\x00\xff\xff\xff\xff", 5) + std::string(1 << 14, 'x');
  std::deque<Http2Client> held;
  for (uint64_t i = 0; !stop; ++i) {
    if (held.size() >= kHeld) held.pop_front();
    const std::string& server = target_.servers[i % target_.servers.size()];
    int port = 0;
    if (absl::SimpleAtoi(server.substr(server.rfind(':') + 1), &port)) {
      Http2Client& client = held.emplace_back(port);
      client.Call(kMethods[i % std::size(kMethods)]);
      client.Send({Http2Client::kData, 0, 1, begin});
    }
    acts_.Count();
    if (i % 8 == 0) {
      grpc::ClientContext context;
      SetDeadline(context);
      v1::LeaveReply reply;
      acts_.Count("leave", coordinator->Leave(&context, leave, &reply).ok());
    }
    std::this_thread::sleep_for(kPace);
  }
}

void Attacker::AttackHttp(const std::atomic<bool>& stop) {
  std::string ranges = "GET /metrics HTTP/1.1\r\nHost: x\r\nRange: bytes=0-";
  for (int i = 0; i < 1000; ++i) ranges += ",0-";
  ranges += "\r\n\r\n";
  std::deque<UniqueFd> endless;
  for (uint64_t i = 0; !stop; ++i) {
    acts_.Count();
    if (i % 5 == 0) {
      if (endless.size() >= kHeld / 2) endless.pop_front();
      UniqueFd fd = Dial(target_.http);
      if (fd.valid() && SendAll(fd, "GET /status HTTP/1.1\r\nX: ")) endless.push_back(std::move(fd));
    } else if (i % 5 == 1) {
      const UniqueFd fd = Dial(target_.http);
      if (fd.valid()) SendAll(fd, ranges);
    }
    for (UniqueFd& fd : endless) {
      if (fd.valid() && !SendAll(fd, std::string(1 << 12, 'x'))) fd.Close();
    }
    std::this_thread::sleep_for(kPace);
  }
}

}  // namespace weir

#include "client/grpc_heartbeat.h"

#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/backoff.h"
#include "client/grpc_channel.h"
#include "common/grpc_token.h"
#include "common/mutex.h"
#include "proto/coordinator.grpc.pb.h"

namespace weir {

struct GrpcHeartbeat::Impl final : GrpcPoller::Event {
  using Clock = std::chrono::steady_clock;

  Impl(GrpcPoller& p, Options o) : poller(p), options(std::move(o)) {
    thread = std::thread([this] { Run(); });
  }

  void Run() {
    const auto channel = MakeChannel(options.address, options.server_wait);
    const auto stub = v1::Coordinator::NewStub(channel);
    Backoff backoff(std::chrono::milliseconds(50), std::chrono::milliseconds(500));
    // The last of all times: it is not.
    Clock::time_point unreachable_since = Clock::time_point::max();
    while (true) {
      const Clock::time_point started = Clock::now();
      v1::HeartbeatReply reply;
      const std::optional<absl::Status> status = Beat(*stub, &reply);
      if (!status.has_value()) return;
      if (status->ok()) {
        unreachable_since = Clock::time_point::max();
        backoff.Reset();
        if (!options.on_reply(reply)) return;
        continue;
      }
      if (absl::IsUnauthenticated(*status) || absl::IsPermissionDenied(*status)) {
        options.on_lost(absl::Status(status->code(), absl::StrCat("ps:0 (coordinator) at ", options.address,
                                                                  ": ", status->message())));
        return;
      }
      const Clock::time_point now = Clock::now();
      // A coordinator that hangs has been away since its answer was due.
      unreachable_since = std::min<Clock::time_point>(
          unreachable_since, absl::IsDeadlineExceeded(*status) ? started + options.lease / 3 : now);
      const Clock::time_point give_up = unreachable_since + options.server_wait;
      if (now >= give_up) {
        options.on_lost(absl::UnavailableError(
            absl::StrCat("ps:0 (coordinator) at ", options.address, " was lost: ", status->message())));
        return;
      }
      if (!Pause(std::min<Clock::time_point>(now + backoff.Next(), give_up))) return;
    }
  }

  // nullopt: stopped.
  std::optional<absl::Status> Beat(v1::Coordinator::Stub& stub, v1::HeartbeatReply* reply) {
    const v1::HeartbeatRequest request = options.request();
    grpc::ClientContext beat;
    beat.set_deadline(std::chrono::system_clock::now() + options.lease);
    SetToken(options.token, &beat);
    grpc::Status status;
    MutexLock lock(mutex);
    if (stopped) return std::nullopt;
    context = &beat;
    // Not a blocking call: that would poll gRPC's sockets on this thread, and take the data's events, too.
    const auto rpc = stub.AsyncHeartbeat(&beat, request, poller.queue());
    rpc->Finish(reply, &status, static_cast<GrpcPoller::Event*>(this));
    while (context != nullptr) wake.Wait(mutex);
    if (stopped) return std::nullopt;
    return FromGrpc(status);
  }

  // The heartbeat has ended.
  void OnEvent(bool /*ok*/) override {
    MutexLock lock(mutex);
    context = nullptr;
    wake.NotifyAll();
  }

  // False: stopped.
  bool Pause(Clock::time_point until) {
    MutexLock lock(mutex);
    while (!stopped && Clock::now() < until) wake.WaitUntil(mutex, until);
    return !stopped;
  }

  void Stop() {
    {
      MutexLock lock(mutex);
      stopped = true;
      if (context != nullptr) context->TryCancel();
      wake.NotifyAll();
    }
    if (thread.joinable()) thread.join();
  }

  GrpcPoller& poller;
  const Options options;
  Mutex mutex;
  CondVar wake;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  // Of the heartbeat in flight.
  grpc::ClientContext* context ABSL_GUARDED_BY(mutex) = nullptr;
  std::thread thread;
};

GrpcHeartbeat::GrpcHeartbeat(GrpcPoller& poller, Options options)
    : impl_(new Impl(poller, std::move(options))) {}
GrpcHeartbeat::~GrpcHeartbeat() { Stop(); }
void GrpcHeartbeat::Stop() { impl_->Stop(); }

}  // namespace weir

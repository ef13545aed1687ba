#include "client/grpc/grpc_heartbeat.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/call/backoff.h"
#include "client/grpc/grpc_channel.h"
#include "common/protocol/job_failure.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/grpc_token.h"
#include "common/sync/mutex.h"
#include "common/system/awake_clock.h"
#include "proto/coordinator.grpc.pb.h"

namespace weir {

// All times are awake ones: what was not heard while this process was stopped tells nothing of ps:0.
struct GrpcHeartbeat::Impl final : GrpcPoller::Event {
  Impl(GrpcPoller& p, Options o)
      : poller(p),
        options(std::move(o)),
        lease(absl::FromChrono(options.lease)),
        server_wait(absl::FromChrono(options.server_wait)) {
    thread = std::thread([this] { Run(); });
  }

  void Run() {
    const auto channel = MakeChannel(options.address, options.server_wait);
    const auto stub = v1::Coordinator::NewStub(channel);
    Backoff backoff(std::chrono::milliseconds(50), std::chrono::milliseconds(500));
    // The last of all times: it is not.
    absl::Time unreachable_since = absl::InfiniteFuture();
    while (true) {
      const absl::Time started = clock.Now();
      const Stretch beat;
      v1::HeartbeatReply reply;
      const std::optional<absl::Status> status = Beat(*stub, &reply);
      if (!status.has_value()) return;
      if (status->ok()) {
        unreachable_since = absl::InfiniteFuture();
        backoff.Reset();
        if (!options.on_reply(reply)) return;
        continue;
      }
      if (absl::IsUnauthenticated(*status) || absl::IsPermissionDenied(*status)) {
        options.on_lost(Reworded(
            *status, absl::StrCat("ps:0 (coordinator) at ", options.address, ": ", status->message())));
        return;
      }
      const absl::Time now = clock.Now();
      // A coordinator that hangs has been away since its answer was due.
      unreachable_since =
          std::min(unreachable_since, absl::IsDeadlineExceeded(*status) ? started + lease / 3 : now);
      const absl::Time give_up = unreachable_since + server_wait;
      if (now >= give_up && !beat.interrupted()) {
        options.on_lost(absl::UnavailableError(
            absl::StrCat("ps:0 (coordinator) at ", options.address, " was lost: ", status->message())));
        return;
      }
      const absl::Time next = now + absl::FromChrono(backoff.Next());
      if (!Pause(now < give_up ? std::min(next, give_up) : next)) return;
    }
  }

  // nullopt: stopped.
  std::optional<absl::Status> Beat(v1::Coordinator::Stub& stub, v1::HeartbeatReply* reply) {
    const v1::HeartbeatRequest request = options.request();
    grpc::ClientContext beat;
    SetToken(options.token, &beat);
    grpc::Status status;
    MutexLock lock(mutex);
    if (stopped) return std::nullopt;
    context = &beat;
    // Not a blocking call: that would poll gRPC's sockets on this thread, and take the data's events, too.
    const auto rpc = stub.AsyncHeartbeat(&beat, request, poller.queue());
    rpc->Finish(reply, &status, static_cast<GrpcPoller::Event*>(this));
    const absl::Time due = clock.Now() + lease;
    while (context != nullptr && clock.Now() < due) WaitUntil(due);
    const bool late = context != nullptr;
    if (late) context->TryCancel();
    while (context != nullptr) wake.Wait(mutex);
    if (stopped) return std::nullopt;
    if (late && !status.ok()) {
      return absl::DeadlineExceededError(
          absl::StrCat("a heartbeat was not answered within ", absl::FormatDuration(lease)));
    }
    return FromGrpc(status);
  }

  // The heartbeat has ended.
  void OnEvent(bool /*ok*/) override {
    MutexLock lock(mutex);
    context = nullptr;
    wake.NotifyAll();
  }

  // False: stopped.
  bool Pause(absl::Time until) {
    MutexLock lock(mutex);
    while (!stopped && clock.Now() < until) WaitUntil(until);
    return !stopped;
  }

  // Or shorter.
  void WaitUntil(absl::Time until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    wake.WaitUntil(mutex, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(until - clock.Now()));
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
  const absl::Duration lease, server_wait;
  const Clock& clock = Clock::Awake();
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

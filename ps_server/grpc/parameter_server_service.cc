#include "ps_server/grpc/parameter_server_service.h"

#include <algorithm>

#include "common/codec/wire_codec.h"
#include "ps_server/grpc/grpc_unary_call.h"

namespace weir {

ParameterServerService::ParameterServerService(Options options)
    : options_(std::move(options)),
      arriving_rows_(options_.most_row_bytes),
      asked_rows_(options_.most_row_bytes),
      service_(kService) {}

void ParameterServerService::Register(grpc::ServerBuilder* builder) {
  builder->RegisterService(&service_);
  ExchangeSession::Options session;
  session.shard = options_.shard;
  session.limits = &options_.admission->limits();
  session.arriving_rows = &arriving_rows_;
  session.asked_rows = &asked_rows_;
  session.chunk_elements = static_cast<uint64_t>(ChunkElements(options_.wire.chunk_kib()));
  session.chunks_in_flight = options_.wire.chunks_in_flight();
  for (GrpcEventLoop& loop : *options_.loops) {
    GrpcExchangeCall::Host& host = hosts_.emplace_back();
    host.service = &service_;
    host.loop = &loop;
    host.admission = options_.admission;
    host.session = session;
    host.session.executor = &loop;
    host.sessions = &sessions_;
    host.accept_next = [this] { AcceptNext(); };
    host.on_broken = options_.on_broken;
  }
}

void ParameterServerService::Start(SharedMemoryServer* shared_memory) {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    hosts_[i].session.shared_memory = shared_memory;
    hosts_[i].rings = shared_memory;
    hosts_[i].bell = static_cast<uint32_t>(i);
  }
  AcceptNext();
  ServeUnary<v1::ReadRowsRequest, v1::ReadRowsReply>(
      &options_.loops->front(), &service_, options_.admission, RuleOf("weir.v1.ParameterServer/ReadRows"),
      [this](v1::ReadRowsRequest request, auto done) {
        options_.shard->ShowRows(std::move(request), std::move(done));
        return nullptr;
      });
}

void ParameterServerService::AcceptNext() {
  GrpcExchangeCall::Host& host = *std::min_element(
      hosts_.begin(), hosts_.end(), [](const auto& a, const auto& b) { return a.open < b.open; });
  host.loop->Post([&host] { GrpcExchangeCall::Accept(&host); });
}

void ParameterServerService::End(const absl::Status& failure) {
  for (GrpcExchangeCall::Host& host : hosts_) {
    host.loop->Post([&host, failure] {
      host.over = failure;
      for (GrpcExchangeCall* call : host.calls) call->EndJob();
    });
  }
}

void ParameterServerService::DropRevoked() {
  for (GrpcExchangeCall::Host& host : hosts_) {
    host.loop->Post([&host] {
      for (GrpcExchangeCall* call : host.calls) call->DropRevoked();
    });
  }
}

void ParameterServerService::WantReleases() {
  if (wants_releases_.exchange(true)) return;
  for (GrpcExchangeCall::Host& host : hosts_) {
    host.loop->Post([&host] {
      host.wants_releases = true;
      for (GrpcExchangeCall* call : host.calls) call->WantReleases();
    });
  }
}

uint64_t ParameterServerService::open_streams() const {
  uint64_t sum = 0;
  for (const GrpcExchangeCall::Host& host : hosts_) sum += host.open;
  return sum;
}

uint64_t ParameterServerService::messages_received() const {
  uint64_t sum = 0;
  for (const GrpcExchangeCall::Host& host : hosts_) sum += host.messages_received;
  return sum;
}

uint64_t ParameterServerService::messages_sent() const {
  uint64_t sum = 0;
  for (const GrpcExchangeCall::Host& host : hosts_) sum += host.messages_sent;
  return sum;
}

}  // namespace weir

// Readers that hang, over real connections: they ask for weights and never read them.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/server_fixture.h"

namespace weir {
namespace {

// More than connections buffer.
constexpr int64_t kElements = 3 << 20;

// A stream over a connection of its own, which is never read.
struct HungReader {
  HungReader(const ServerFixture& f, uint64_t id) {
    grpc::ChannelArguments own;
    own.SetInt("weir.test.connection", static_cast<int>(id));
    stub = v1::ParameterServer::NewStub(
        grpc::CreateCustomChannel(f.cluster->addresses()[0], grpc::InsecureChannelCredentials(), own));
    stream = std::make_unique<RawStream>(*stub);
    v1::ExchangeRequest request;
    request.set_id(1);
    *request.mutable_pull() = f.PullHeader();
    REQUIRE(stream->Write(request));
    // The weights are on their way.
    REQUIRE(stream->Read().has_value());
  }
  std::unique_ptr<v1::ParameterServer::Stub> stub;
  std::unique_ptr<RawStream> stream;
};

TEST_CASE("Readers that never read hold up a step for as long as one may, and then no more") {
  ServerFixture f(kElements);
  f.config.mutable_train()->set_epochs(1);
  f.Start();
  f.Join();
  std::vector<std::unique_ptr<HungReader>> readers;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < 3; ++i) {
    readers.push_back(std::make_unique<HungReader>(f, i));
    f.TrainStep();  // has a deadline
  }
  const auto with_readers = std::chrono::steady_clock::now();
  // Further readers that hang cost nothing, however many.
  for (uint64_t i = 3; i < 5; ++i) {
    readers.push_back(std::make_unique<HungReader>(f, i));
    f.TrainStep();
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(120));
  CHECK(with_readers - start < std::chrono::seconds(60));
  // The first reader gets the error that it was cut off.
  CHECK(readers[0]->stream->End().code() == absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace weir

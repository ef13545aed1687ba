#include "common/threads/future.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "catch2/catch.hpp"

namespace weir {
namespace {

TEST_CASE("what is made of a result comes when the result does, or is there if it was") {
  const bool before = GENERATE(false, true);
  Promise<int> promise;
  if (before) promise.Set(3);
  const Future<std::string> made =
      promise.future().Then([](int value) { return std::string(static_cast<size_t>(value), 'x'); });
  CHECK(made.ready() == before);
  if (!before) promise.Set(3);
  CHECK(made.Get().value() == "xxx");
}

TEST_CASE("of an error nothing is made") {
  Promise<int> promise;
  bool called = false;
  const Future<int> made = promise.future().Then([&](int value) {
    called = true;
    return value;
  });
  promise.Set(absl::UnavailableError("gone"));
  CHECK(made.Get().status() == absl::UnavailableError("gone"));
  CHECK_FALSE(called);
}

TEST_CASE("the result is taken, not copied, after who was to hear of it") {
  Promise<std::unique_ptr<int>> promise;
  int heard = 0;
  promise.future().OnReady([&](const absl::StatusOr<std::unique_ptr<int>>& result) { heard = **result; });
  Future<std::unique_ptr<int>> made = promise.future()
                                          .Then([](std::unique_ptr<int> value) { return value; })
                                          .Then([](std::unique_ptr<int> value) {
                                            ++*value;
                                            return value;
                                          });
  promise.Set(std::make_unique<int>(6));
  CHECK(heard == 6);
  CHECK(*made.Take().value() == 7);
}

TEST_CASE("who waits for what is made of a result works on the result") {
  struct Worker final : ResultDriver {
    void WaitUntil(absl::FunctionRef<bool()> ready, absl::FunctionRef<void()>, Deadline) override {
      promise->Set(4);
      worked = ready();
    }
    Promise<int>* promise = nullptr;
    bool worked = false;
  };
  const auto worker = std::make_shared<Worker>();
  Promise<int> promise(worker);
  worker->promise = &promise;
  CHECK(promise.future().Then([](int value) { return value + 1; }).Get().value() == 5);
  CHECK(worker->worked);
}

}  // namespace
}  // namespace weir

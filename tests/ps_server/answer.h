#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "catch2/catch.hpp"

namespace weir {

// The answer to a call that may be parked.
template <typename Reply>
struct Answer {
  std::optional<absl::StatusOr<Reply>> value;
  int times = 0;

  bool there() const { return times > 0; }
  absl::Status status() const { return there() ? value->status() : absl::UnknownError("no answer yet"); }
  // Fails the test if there is no answer.
  const Reply& reply() const {
    INFO("answer: " << status().ToString());
    REQUIRE(status().ok());
    return **value;
  }
};

template <typename Reply>
using AnswerPtr = std::shared_ptr<Answer<Reply>>;

// A callback that keeps the answer.
template <typename Reply>
auto Keep(const AnswerPtr<Reply>& answer) {
  return [answer](absl::StatusOr<Reply> reply) {
    answer->value = std::move(reply);
    ++answer->times;
  };
}

}  // namespace weir

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/contestant.h"
#include "bench/memory.h"
#include "client/client.h"
#include "common/base/status_macros.h"
#include "tests/bench/row_contestants.h"
#include "tests/bench/row_gather.h"

namespace weir::bench {
namespace {

// New rows of one push.
constexpr uint64_t kFill = 1 << 18;
// The size of the dense model beside the table; a job must have one.
constexpr int64_t kDense = 16;

class WeirRowClient final : public StepClient {
 public:
  WeirRowClient(const Contestant& contestant, int index)
      : contestant_(contestant),
        index_(index),
        batches_(ZipfBatches(contestant.table_rows, static_cast<uint64_t>(index))),
        rows_(static_cast<int64_t>(kBatchKeys * contestant.dim), 0) {}

  absl::Status Join(const std::vector<std::string>& addresses) {
    const ModelSpec model{{{"w", {kDense}, TensorKind::kParameter, Initializer::Zeros()}}};
    WEIR_ASSIGN_OR_RETURN(const ClientOptions options, WeirClientOptions(contestant_, index_, addresses));
    WEIR_ASSIGN_OR_RETURN(client_, Client::Join(options, model));
    return Fill();
  }

  absl::Status Step() override {
    const std::vector<uint64_t>& keys = batches_[step_++ % batches_.size()];
    const absl::Span<float> values = absl::MakeSpan(rows_.data(), rows_.elements());
    if (contestant_.row_step != "push") {
      WEIR_ASSIGN_OR_RETURN(base_, client_->PullRows(work_->clock, {{0, keys, values}}).Get());
    }
    // The values that were read serve as the gradient: nothing is computed.
    return contestant_.row_step == "pull" ? absl::OkStatus() : Push(keys, values);
  }

 private:
  // Makes this client's share of the rows.
  absl::Status Fill() {
    WEIR_RETURN_IF_ERROR(TakeWork());
    WEIR_ASSIGN_OR_RETURN(base_, client_->Pull(work_->clock, {{"w", absl::MakeSpan(dense_)}}).Get());
    const auto [begin, end] =
        PartOf(static_cast<int64_t>(contestant_.table_rows), index_, contestant_.clients);
    std::vector<float> gradients(kFill * contestant_.dim, 1e-3f);
    for (uint64_t first = static_cast<uint64_t>(begin); first < static_cast<uint64_t>(end); first += kFill) {
      std::vector<uint64_t> keys(std::min(kFill, static_cast<uint64_t>(end) - first));
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = first + i;
      WEIR_RETURN_IF_ERROR(
          Push(keys, absl::MakeConstSpan(gradients).subspan(0, keys.size() * contestant_.dim)));
    }
    return absl::OkStatus();
  }

  absl::Status Push(absl::Span<const uint64_t> keys, absl::Span<const float> gradients) {
    const auto push =
        client_->Push(*work_, base_, {{"w", absl::MakeConstSpan(dense_)}}, nullptr, {{0, keys, gradients}});
    WEIR_ASSIGN_OR_RETURN(const PushResult result, push.Get());
    if (!result.applied) return absl::InternalError("an update was not applied: " + result.reason);
    return TakeWork();
  }

  absl::Status TakeWork() {
    WEIR_ASSIGN_OR_RETURN(work_, client_->NextWork());
    return work_.has_value() ? absl::OkStatus() : absl::OutOfRangeError("the benchmark's job has ended");
  }

  const Contestant contestant_;
  const int index_;
  const std::vector<std::vector<uint64_t>> batches_;
  size_t step_ = 0;
  Tensor rows_;
  std::vector<float> dense_ = std::vector<float>(kDense);
  std::unique_ptr<Client> client_;
  std::optional<Work> work_;
  PullResult base_;
};

}  // namespace

Contestant WeirRows(const std::string& name, uint64_t rows, uint64_t dim, const std::string& config) {
  Contestant contestant = Weir(name, "");
  contestant.kind = "weir rows";
  contestant.optimizer = "sgd";
  contestant.table_rows = rows;
  contestant.dim = dim;
  nlohmann::json job = {{"tables",
                         {{{"name", "rows"},
                           {"dim", dim},
                           {"optimizer", {{"type", "rowwise_adagrad"}, {"learning_rate", 0.01}}}}}}};
  job.merge_patch(nlohmann::json::parse(config));
  contestant.config = job.dump();
  return contestant;
}

Kind WeirRowsKind() {
  return {WeirKind().start_server,
          [](const Contestant& contestant, int index,
             const std::vector<std::string>& addresses) -> absl::StatusOr<std::unique_ptr<StepClient>> {
            auto client = std::make_unique<WeirRowClient>(contestant, index);
            WEIR_RETURN_IF_ERROR(client->Join(addresses));
            return client;
          }};
}

}  // namespace weir::bench

// The program in the comment of client/client.h, which tests/structure/example_test.py compares with this
// one.
#include <algorithm>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "catch2/catch.hpp"
#include "client/client.h"
#include "common/base/status_macros.h"
#include "local/in_process_cluster.h"
#include "tests/integration/counting_job.h"

namespace weir {
namespace {

void ComputeGradient(const Work&, const std::vector<float>&, std::vector<float>* gradient) {
  std::fill(gradient->begin(), gradient->end(), 1.0f);
}

// clang-format off
absl::Status Train(const ClientOptions& options, const ModelSpec& model) {
  WEIR_ASSIGN_OR_RETURN(const auto client, Client::Join(options, model));
  std::vector<float> weights(model.elements()), gradient(model.elements());
  std::optional<uint64_t> have;  // the clock of the weights at hand
  PullResult base;               // which weights these are
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const std::optional<Work> work, client->NextWork());
    if (!work.has_value()) break;  // the job is done
    if (have != work->clock) {
      const auto tensors = TensorsOf(model, absl::MakeSpan(weights));
      WEIR_ASSIGN_OR_RETURN(base, client->Pull(work->clock, tensors).Get());
      if (base.past) continue;  // the others were faster
      have = work->clock;
    }
    ComputeGradient(*work, weights, &gradient);  // the mean over the work's examples
    const auto tensors = TensorsOf(model, absl::MakeConstSpan(gradient));
    WEIR_RETURN_IF_ERROR(client->Push(*work, base, tensors).Get().status());
  }
  return client->Leave();
}
// clang-format on

void CheckExample(const std::vector<std::string>& mode) {
  std::vector<std::string> set = {"cluster.workers=1", "train.examples=20"};
  set.insert(set.end(), mode.begin(), mode.end());
  InProcessCluster::Options cluster_options;
  cluster_options.config = CountingJob(set);
  cluster_options.servers = 2;
  auto cluster = InProcessCluster::Start(cluster_options);
  REQUIRE(cluster.ok());
  ClientOptions options;
  options.servers = (*cluster)->addresses();
  options.job_config = cluster_options.config.SerializeAsString();
  options.train_examples = 1000;
  const absl::Status trained = Train(options, CountingModel());
  INFO(trained.ToString());
  CHECK(trained.ok());
  CHECK((*cluster)->Wait().ok());
}

TEST_CASE("the example of client.h trains: sync") { CheckExample({"consistency.mode=sync"}); }
TEST_CASE("the example of client.h trains: async") { CheckExample({"consistency.mode=async"}); }

}  // namespace
}  // namespace weir

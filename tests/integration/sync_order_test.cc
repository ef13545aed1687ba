// Each sync step gives the same bits, whatever the network does to its parts: other orders, repeats, parts
// from any worker that has them, parts of the next step before the commit of this one.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/model/partition.h"
#include "common/model/wire_model.h"
#include "common/optimizer/kernels.h"
#include "common/threads/thread.h"
#include "ps_server/shard/shard.h"
#include "tests/integration/serial_reference.h"
#include "tests/integration/sync_run.h"
#include "tests/ps_server/shard/push_whole.h"

namespace weir {
namespace {

constexpr uint32_t kParts = 5, kWorkers = 3;
constexpr uint64_t kBatchSize = 8;
// 11 whole steps; then one of 3 parts, the last of 3 examples.
constexpr uint64_t kExamples = 11 * kParts * kBatchSize + 2 * kBatchSize + 3, kSteps = 12;

template <typename T>
void Shuffle(RandomStream& random, std::vector<T>& values) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.NextBelow(i)]);
}

ModelSpec OddModel() {
  ModelSpec model;
  model.tensors = {{"a/weight", {37, 13}, TensorKind::kParameter, Initializer::HeNormal(37)},
                   {"a/bias", {13}, TensorKind::kParameter, Initializer::Zeros()},
                   {"b/weight", {5, 7, 3}, TensorKind::kParameter, Initializer::GlorotUniform(5, 7)},
                   {"b/scale", {}, TensorKind::kParameter, Initializer::Zeros()}};
  return model;
}

v1::JobConfig OddJob() {
  v1::JobConfig config = DigitsJob(
      {R"(optimizer.groups=[{"match":"b/scale","frozen":true},{"match":"*/bias","learning_rate_factor":2}])",
       "optimizer.weight_decay=0.01", R"(optimizer.schedule={"type":"cosine","warmup_steps":3})"});
  config.mutable_train()->set_examples(kExamples);
  config.mutable_consistency()->set_parts(kParts);
  return config;
}

uint64_t BatchesOf(uint64_t examples) { return (examples + kBatchSize - 1) / kBatchSize; }

struct Part {
  uint64_t step = 0;
  uint32_t part = 0;
};

// The gradients of every part: of very different sizes, so that sums in another order differ.
std::vector<SerialWeights::Part> PartsOf(uint64_t step, int64_t elements) {
  std::vector<SerialWeights::Part> parts;
  for (uint64_t batch = step * kParts; batch < std::min((step + 1) * kParts, BatchesOf(kExamples)); ++batch) {
    SerialWeights::Part& part = parts.emplace_back();
    part.examples = std::min(kBatchSize, kExamples - batch * kBatchSize);
    RandomStream random(RandomKey(7, "gradient"), batch);
    for (int64_t i = 0; i < elements; ++i) {
      const float size = static_cast<float>(1 << random.NextBelow(12));
      part.gradient.push_back(size * (UniformFloat(random.Next()) - 0.5f));
    }
  }
  return parts;
}

// Shards without network or coordinator, and a network that does everything it may do.
class Shards {
 public:
  Shards(uint32_t shards, uint64_t seed)
      : model_(OddModel()),
        config_(OddJob()),
        partition_(model_.elements(), shards),
        random_(RandomKey(seed, "network"), shards) {
    for (uint64_t step = 0; step < kSteps; ++step) parts_.push_back(PartsOf(step, model_.elements()));
    v1::ControlMessage install;
    install.mutable_install()->set_num_shards(shards);
    *install.mutable_install()->mutable_model() = ToProto(model_);
    install.mutable_install()->set_job_config(config_.SerializeAsString());
    install.mutable_install()->set_workers(kWorkers);
    install.mutable_install()->set_parts(kParts);
    install.mutable_install()->set_total_steps(kSteps);
    install.mutable_install()->set_total_batches(BatchesOf(kExamples));
    install.mutable_install()->set_total_examples(kExamples);
    v1::ControlMessage membership;
    membership.mutable_membership()->mutable_membership()->set_epoch(1);
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      v1::Member& member = *membership.mutable_membership()->mutable_membership()->add_members();
      member.set_worker(worker);
      member.set_incarnation(worker + 1);
    }
    staged_.resize(shards);
    for (uint32_t k = 0; k < shards; ++k) {
      Shard::Options options;
      options.config = config_;
      options.new_incarnation = [k] { return 100 + k; };
      options.threads = &threads_;
      options.kernels = &BestKernels();
      shards_.push_back(std::make_unique<Shard>(std::move(options)));
      shards_[k]->SetReporter([this, k](const v1::ShardReport& report) {
        if (report.has_staged()) staged_[k].push_back(report.staged().step());
        errors_ += report.installed().error();
      });
      install.mutable_install()->set_shard(k);
      shards_[k]->Control(install);
      shards_[k]->Control(membership);
    }
  }

  const std::string& errors() const { return errors_; }
  uint64_t repeats() const { return repeats_; }
  // By number of occurrences: outcomes of the pushes that were not fenced.
  const std::map<v1::Outcome, uint64_t>& outcomes() const { return outcomes_; }
  const std::map<v1::Outcome, uint64_t>& fenced_outcomes() const { return fenced_outcomes_; }
  uint64_t answers() const { return answers_; }
  uint64_t pushes() const { return pushes_; }

  void Train() {
    std::vector<std::vector<Part>> early(shards_.size());
    for (uint64_t step = 0; step < kSteps; ++step) {
      std::vector<uint32_t> order(shards_.size());
      std::iota(order.begin(), order.end(), 0);
      Shuffle(random_, order);
      for (uint32_t shard : order) StageStep(shard, step, early[shard]);
      for (const auto& staged : staged_) REQUIRE(staged == std::vector<uint64_t>{step});
      v1::ControlMessage commit;
      commit.mutable_commit()->set_step(step);
      for (uint32_t part = 0; part < parts_[step].size(); ++part) commit.mutable_commit()->add_parts(part);
      Shuffle(random_, order);
      for (uint32_t shard : order) {
        early[shard].clear();
        staged_[shard].clear();
        // A worker read the next version on another shard, before this shard's commit.
        if (step + 1 < kSteps) {
          for (uint32_t part = 0; part < parts_[step + 1].size(); ++part) {
            if (random_.NextBelow(3) == 0) early[shard].push_back({step + 1, part});
          }
        }
        Shuffle(random_, early[shard]);
        for (const Part& part : early[shard]) Push(shard, part, /*garbage=*/false);
        shards_[shard]->Control(commit);
        if (random_.NextBelow(2) == 0) shards_[shard]->Control(commit);
      }
    }
  }

  std::vector<float> Weights() {
    std::vector<float> weights(model_.elements());
    for (uint32_t k = 0; k < shards_.size(); ++k) {
      v1::PullRequest request;
      *request.mutable_caller() = CallerOf(0);
      request.set_clock(kSteps);
      bool answered = false;
      shards_[k]->Pull(1, request, [&](const absl::StatusOr<PullAnswer>& answer) {
        if (!answer.ok() || answer->version == nullptr) return;
        answered = answer->version->count == kSteps;
        ForEachBlock(k, [&](int64_t start, int64_t local, int64_t length) {
          std::copy_n(answer->version->weights.get() + local, length, weights.begin() + start);
        });
      });
      REQUIRE(answered);
    }
    return weights;
  }

 private:
  template <typename Body>
  void ForEachBlock(uint32_t shard, const Body& body) const {
    for (int64_t block = 0; block < partition_.shard_blocks(shard); ++block) {
      body(partition_.block_start(shard, block), block * partition_.block_size(),
           partition_.block_length(shard, block));
    }
  }

  v1::Caller CallerOf(uint32_t worker) const {
    v1::Caller caller;
    caller.set_worker(worker);
    caller.set_incarnation(worker + 1);
    caller.set_epoch(1);
    caller.set_model_hash(model_.Hash());
    return caller;
  }

  // Delivers the parts that `early` has not brought, in a random order. After its first delivery a part comes
  // again with values that would spoil the step; so do parts of the step before, and of callers that are
  // fenced.
  void StageStep(uint32_t shard, uint64_t step, const std::vector<Part>& early) {
    std::set<uint32_t> here;
    for (const Part& part : early) here.insert(part.part);
    std::vector<Part> deliveries;
    for (uint32_t part = 0; part < parts_[step].size(); ++part) {
      for (uint32_t copies = 1 + random_.NextBelow(3); copies > 0; --copies)
        deliveries.push_back({step, part});
      if (step > 0 && random_.NextBelow(2) == 0) deliveries.push_back({step - 1, part});
    }
    Shuffle(random_, deliveries);
    for (const Part& part : deliveries) {
      const bool again = part.step < step || !here.insert(part.part).second;
      if (!again && random_.NextBelow(3) == 0) Push(shard, part, /*garbage=*/true, /*fenced=*/true);
      repeats_ += again ? 1 : 0;
      Push(shard, part, /*garbage=*/again);
    }
  }

  void Push(uint32_t shard, const Part& part, bool garbage, bool fenced = false) {
    const uint64_t batch = part.step * kParts + part.part;
    v1::PushRequest header;
    *header.mutable_caller() = CallerOf(random_.NextBelow(kWorkers));
    if (fenced) header.mutable_caller()->set_incarnation(77);
    header.set_clock(part.step);
    header.set_part(part.part);
    header.set_batch_plus_one(batch + 1);
    header.set_examples(parts_[part.step][part.part].examples);
    header.mutable_base()->set_incarnation(100 + shard);
    header.mutable_base()->set_count(part.step);
    header.set_elements(partition_.shard_elements(shard));
    std::vector<float> gradient(partition_.shard_elements(shard), 12345.0f);
    ForEachBlock(shard, [&](int64_t start, int64_t local, int64_t length) {
      if (!garbage) std::copy_n(&parts_[part.step][part.part].gradient[start], length, &gradient[local]);
    });
    ++pushes_;
    PushWhole(*shards_[shard], 1, header, std::move(gradient),
              [this, fenced](const absl::StatusOr<v1::PushReply>& reply) {
                ++answers_;
                if (reply.ok()) ++(fenced ? fenced_outcomes_ : outcomes_)[reply->outcome()];
                if (!reply.ok()) errors_ += std::string(reply.status().message()) + "\n";
              });
  }

  const ModelSpec model_;
  const v1::JobConfig config_;
  const Partition partition_;
  RandomStream random_;
  std::vector<std::vector<SerialWeights::Part>> parts_;  // by step
  std::vector<std::vector<uint64_t>> staged_;            // by shard: steps reported since the last commit
  std::string errors_;
  uint64_t repeats_ = 0, pushes_ = 0, answers_ = 0;
  std::map<v1::Outcome, uint64_t> outcomes_, fenced_outcomes_;
  ThreadPool threads_{2};
  std::vector<std::unique_ptr<Shard>> shards_;
};

TEST_CASE("parts that come in any order, repeatedly, early, late and from the fenced") {
  const ModelSpec model = OddModel();
  auto expected = SerialWeights::Create(OddJob(), model, kSteps);
  REQUIRE(expected.ok());
  for (uint64_t step = 0; step < kSteps; ++step) expected->Step(PartsOf(step, model.elements()));
  const std::string hash = WeightsSha256(expected->values());

  for (uint32_t count : {1, 2, 3, 4}) {
    for (uint64_t seed = 0; seed < 25; ++seed) {
      INFO(count << " shards, seed " << seed);
      Shards shards(count, seed);
      REQUIRE(shards.errors().empty());
      shards.Train();
      CHECK(shards.errors() == "");
      CHECK(WeightsSha256(shards.Weights()) == hash);
      // Every push got one answer: a live worker's that its part is in the step, a fenced one's that it is
      // fenced.
      CHECK(shards.answers() == shards.pushes());
      CHECK(shards.outcomes().size() == 1);
      CHECK(shards.outcomes().count(v1::OK) == 1);
      CHECK(shards.fenced_outcomes().size() == 1);
      CHECK(shards.fenced_outcomes().count(v1::FENCED) == 1);
      CHECK(shards.repeats() > 50);
    }
  }
}

TEST_CASE("the order of the sum shows in the bits") {
  // Shows that the test above can fail.
  const ModelSpec model = OddModel();
  auto right = SerialWeights::Create(OddJob(), model, kSteps);
  auto wrong = SerialWeights::Create(OddJob(), model, kSteps);
  REQUIRE(right.ok());
  REQUIRE(wrong.ok());
  for (uint64_t step = 0; step < kSteps; ++step) {
    std::vector<SerialWeights::Part> parts = PartsOf(step, model.elements());
    right->Step(parts);
    if (step == 3) std::swap(parts[1], parts[4]);
    wrong->Step(parts);
  }
  CHECK(WeightsSha256(right->values()) != WeightsSha256(wrong->values()));
}

}  // namespace
}  // namespace weir

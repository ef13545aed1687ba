#include "client/job/pending_work.h"

#include <utility>

#include "catch2/catch.hpp"

namespace weir {
namespace {

using Call = PendingWork::Call;

constexpr uint64_t kBatches = 4;
const JobLength kLength{10, kBatches, 40};

v1::JoinReply Reply() {
  v1::JoinReply reply;
  reply.set_worker(0);
  reply.set_incarnation(1);
  reply.set_parts(2);
  reply.set_total_steps(2);
  reply.mutable_membership()->add_members()->set_incarnation(1);
  return reply;
}

PendingWork Sync() { return {TraitsOf(v1::ConsistencyConfig::MODE_SYNC), kLength, Reply()}; }
PendingWork Async() { return {TraitsOf(v1::ConsistencyConfig::MODE_ASYNC), kLength, Reply()}; }

Call PushOf(const Work& work) { return {PendingWork::PushKey(work.clock, work.part), {}, false}; }

ShardSet::Answers Applied(uint64_t version) {
  ShardSet::Answers answers(1);
  answers[0].push.set_outcome(v1::OK);
  answers[0].push.mutable_version()->set_count(version);
  return answers;
}

Work Given(const std::optional<PendingWork::Result>& result) {
  REQUIRE(result.has_value());
  REQUIRE(result->ok());
  REQUIRE((*result)->has_value());
  return ***result;
}

bool IsEnd(const std::optional<PendingWork::Result>& result) {
  return result.has_value() && result->ok() && !(*result)->has_value();
}

TEST_CASE(
    "sync gives the parts that follow from the workers' shares, and from a worker's rank without shares") {
  v1::JoinReply reply = Reply();
  reply.set_parts(4);
  v1::Member* const other = reply.mutable_membership()->add_members();
  other->set_worker(1);
  other->set_incarnation(2);
  PendingWork work(TraitsOf(v1::ConsistencyConfig::MODE_SYNC), kLength, reply);
  CHECK(Given(work.NextOfParts({}, false).result).part == 0);
  reply.mutable_membership()->mutable_members(0)->set_share(3);
  other->set_share(1);
  work.SetMembers(reply.membership());
  CHECK(Given(work.NextOfParts({}, false).result).part == 1);
  CHECK(Given(work.NextOfParts({}, false).result).part == 2);
  CHECK_FALSE(work.NextOfParts({}, false).result.has_value());
  // The other worker is gone, so that the shares are not all parts any more.
  reply.mutable_membership()->mutable_members()->RemoveLast();
  work.SetMembers(reply.membership());
  CHECK(Given(work.NextOfParts({}, false).result).part == 3);
}

TEST_CASE("sync gives the parts of the open step, and then asks when the next step opens") {
  PendingWork work = Sync();
  const Work first = Given(work.NextOfParts({}, false).result),
             second = Given(work.NextOfParts({}, false).result);
  CHECK(first.part == 0);
  CHECK(second.part == 1);
  CHECK(work.newest_clock() == 0);
  const PendingWork::NextPart next = work.NextOfParts({}, false);
  CHECK_FALSE(next.result.has_value());
  CHECK(next.probe == 1);
  // A pull of that step is out, which will tell.
  const Call probe{{}, 1, true};
  work.Begin(probe);
  CHECK_FALSE(work.NextOfParts({}, false).probe.has_value());
  work.End(probe, absl::UnavailableError("ps:0 was lost"));
  // The error is given once.
  CHECK(work.NextOfParts({}, false).result->status() == absl::UnavailableError("ps:0 was lost"));
  CHECK(work.NextOfParts({}, false).probe == 1);
  work.OpenStep(1);
  CHECK(Given(work.NextOfParts({}, false).result).clock == 1);
}

TEST_CASE("sync is done when its steps are done and no push is out") {
  PendingWork work = Sync();
  const Work last = Given(work.NextOfParts({}, false).result);
  work.Begin(PushOf(last));
  CHECK_FALSE(work.Done({}));
  work.OpenStep(2);
  CHECK(work.Done({}));
  // The coordinator holds back the end: more work may come.
  CHECK_FALSE(work.Done(2));
  const PendingWork::NextPart waits = work.NextOfParts({}, false);
  CHECK_FALSE(waits.result.has_value());
  CHECK_FALSE(waits.probe.has_value());
  work.End(PushOf(last), Applied(2));
  CHECK(IsEnd(work.NextOfParts({}, false).result));
}

TEST_CASE("sync gives no work from the step on that the coordinator holds back") {
  PendingWork work = Sync();
  const PendingWork::NextPart held = work.NextOfParts(/*work_end=*/0, false);
  CHECK_FALSE(held.result.has_value());
  CHECK_FALSE(held.probe.has_value());
  CHECK(Given(work.NextOfParts(/*work_end=*/1, false).result).clock == 0);
}

TEST_CASE("a push that failed is the answer until it is made again, or its step is past") {
  PendingWork work = Sync();
  const Work first = Given(work.NextOfParts({}, false).result),
             second = Given(work.NextOfParts({}, false).result);
  work.FailPush(first, absl::InternalError("scripted"));
  CHECK(work.NextOfParts({}, false).result->status() == absl::InternalError("scripted"));
  SECTION("it is made again") {
    work.Begin(PushOf(first));
    CHECK(work.pushes_out() == 1);
    CHECK(work.NextOfParts({}, false).probe == 1);
  }
  SECTION("its step is past") {
    work.Begin(PushOf(second));
    work.End(PushOf(second), Applied(1));
    CHECK(work.pushes_out() == 0);
    CHECK(Given(work.NextOfParts({}, false).result).clock == 1);
  }
}

TEST_CASE("a range is taken when the pushes of the range before are acknowledged, which it reports") {
  PendingWork work = Async();
  CHECK_FALSE(work.NextOfRanges(false).has_value());
  REQUIRE(work.MayTakeRange());
  CHECK(work.BeginTaking().empty());
  // One thread at a time.
  CHECK_FALSE(work.MayTakeRange());
  v1::NextRangeReply reply;
  reply.mutable_range()->set_id(7);
  reply.mutable_range()->set_batches(1);
  reply.set_clock(5);
  CHECK(work.TakeRange(reply, {}).value());
  work.EndTaking();
  const Work given = Given(work.NextOfRanges(false));
  CHECK(given.clock == 5);
  CHECK(work.newest_clock() == 5);
  CHECK(work.oldest_clock() == 5);
  CHECK_FALSE(work.MayTakeRange());
  work.Begin(PushOf(given));
  // The push took effect; only weights of its pull were lost.
  work.End(PushOf(given), absl::DataLossError("scripted"));
  REQUIRE(work.MayTakeRange());
  CHECK(work.BeginTaking() == std::vector<uint64_t>{7});
  reply.Clear();
  CHECK_FALSE(work.TakeRange(reply, {7}).value());
  CHECK_FALSE(work.NextOfRanges(false).has_value());
  reply.set_done(true);
  CHECK(work.TakeRange(reply, {}).value());
  CHECK(work.Done({}));
  CHECK(IsEnd(work.NextOfRanges(false)));
}

TEST_CASE("ranges end with the job's examples, but not before what was given out is pushed") {
  PendingWork work = Async();
  v1::NextRangeReply reply;
  reply.mutable_range()->set_batches(1);
  CHECK(work.TakeRange(reply, {}).value());
  const Work given = Given(work.NextOfRanges(true));
  CHECK_FALSE(work.NextOfRanges(true).has_value());
  work.Begin(PushOf(given));
  work.End(PushOf(given), absl::UnavailableError("ps:1 was lost"));
  CHECK(work.NextOfRanges(true)->status() == absl::UnavailableError("ps:1 was lost"));
  work.Begin(PushOf(given));
  work.End(PushOf(given), Applied(1));
  CHECK(IsEnd(work.NextOfRanges(true)));
}

TEST_CASE("a range beyond the job is the coordinator's fault") {
  PendingWork work = Async();
  v1::NextRangeReply reply;
  reply.mutable_range()->set_id(3);
  reply.mutable_range()->set_first_batch(kBatches);
  reply.mutable_range()->set_batches(1);
  CHECK(work.TakeRange(reply, {}).status().code() == absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace weir

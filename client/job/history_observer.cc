#include "client/job/history_observer.h"

namespace weir {

void HistoryObserver::OnPush(const ShardSet::Push& push, uint32_t shard, const v1::PushReply& reply) {
  History::Push line;
  line.worker = caller_.worker();
  line.worker_incarnation = caller_.incarnation();
  line.shard = shard;
  line.clock = push.work.clock;
  line.part = push.work.part;
  line.batch = push.work.batch;
  line.outcome = v1::Outcome_Name(reply.outcome());
  line.version = reply.version().count();
  line.incarnation = reply.version().incarnation();
  line.staleness = reply.staleness();
  history_->Add(line);
}

void HistoryObserver::OnPull(const ShardSet::Pull& pull, uint32_t shard, const v1::PullReply& reply) {
  History::Pull line;
  line.worker = caller_.worker();
  line.worker_incarnation = caller_.incarnation();
  line.shard = shard;
  line.clock = pull.request.clock();
  line.pin = pull.request.pin();
  line.outcome = v1::Outcome_Name(reply.outcome());
  line.version = reply.version().count();
  line.incarnation = reply.version().incarnation();
  for (const v1::WorkerClock& clock : reply.clocks()) line.clocks.emplace_back(clock.worker(), clock.clock());
  history_->Add(line);
}

}  // namespace weir

// The evaluators of sim_client.h.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/sim_client.h"

namespace weir {

SimReader::SimReader(Site* site, World::Node node, uint32_t index, std::function<void(End)> on_end)
    : SimMember(site, node, absl::StrCat("evaluator:", index), v1::READER, index, std::move(on_end)),
      plan_(site->plan.readers[index]) {}

bool SimReader::misbehaves() const {
  return plan_.habit != ReaderPlan::Habit::kReads && site_->world.elapsed() >= plan_.at;
}

void SimReader::OnNews() {
  if ((!reading_ || misbehaves()) && draining()) Leave(true);
}

void SimReader::Read() {
  if (over_ || leaving_) return;
  reading_ = true;
  const bool last = draining(), keeps = misbehaves() && !last;
  v1::PinRequest request;
  *request.mutable_caller() = CallerNow();
  request.set_lease_seconds(keeps && plan_.habit == ReaderPlan::Habit::kPins ? 1e9 : 10);
  const auto again = [this, last] {
    reading_ = false;
    if (last) return Leave(true);
    site_->world.After(node_, site_->world.Between(absl::Milliseconds(20), absl::Milliseconds(300)),
                       Bound([this] { Read(); }));
  };
  Call<v1::PinRequest, v1::PinReply>(
      &Coordinator::Pin, std::move(request), [this, keeps, again](absl::StatusOr<v1::PinReply> reply) {
        if (!reply.ok()) return again();
        if (keeps) {
          if (plan_.habit == ReaderPlan::Habit::kHangs) {
            for (SimShardChannel* channel : channels_) channel->Hang();
            Pull(*reply, nullptr);
          }
          if (++held_ < plan_.holds) again();
          return;
        }
        Pull(*reply, [this, again, pin = reply->pin()] {
          v1::UnpinRequest unpin;
          *unpin.mutable_caller() = CallerNow();
          unpin.set_pin(pin);
          Call<v1::UnpinRequest, v1::UnpinReply>(&Coordinator::Unpin, unpin,
                                                 [again](const absl::StatusOr<v1::UnpinReply>&) { again(); });
        });
      });
}

void SimReader::Pull(const v1::PinReply& pin, const std::function<void()>& done) {
  const std::shared_ptr<Pulling> pulling = NewPull(0, /*view=*/false, /*in_place=*/false);
  pulling->pull.request.set_pin(pin.pin());
  for (const v1::Version& version : pin.versions()) pulling->pull.want.push_back(version.count());
  // A later life of the coordinator counts its pins anew.
  pulling->read = site_->next_session++;
  shards_->Start(shards_->size(), std::nullopt, pulling->pull,
                 Bound([this, pulling, done](const absl::StatusOr<ShardSet::Answers>& answers) {
                   if (absl::IsInternal(answers.status())) Complain(answers.status().ToString());
                   if (done) done();
                 }));
}

}  // namespace weir

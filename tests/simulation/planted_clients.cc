// Bugs of the client's end of the data stream, planted where messages leave and arrive.
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "tests/simulation/planted_bugs.h"

namespace weir {
namespace {

using PushKey = std::pair<uint64_t, uint32_t>;  // clock and part

// Applies `change` to each push that leaves.
std::function<void(Site*)> InPushes(std::function<void(const Site&, v1::PushRequest*)> change) {
  return [change](Site* site) {
    site->seams.request = [site, change](uint64_t, uint32_t, v1::ExchangeRequest* request) {
      if (request->has_push()) change(*site, request->mutable_push());
    };
  };
}

// A repeated push is sent under the next clock.
void RetryUnderNewKey(Site* site) {
  if (site->plan.sync()) return;
  using Push = std::tuple<uint64_t, uint32_t, PushKey>;  // incarnation, shard
  struct State {
    std::set<Push> sent;
    std::map<std::pair<uint64_t, uint64_t>, Push> open;  // by stream and exchange
  };
  const auto state = std::make_shared<State>();
  site->seams.request = [state](uint64_t stream, uint32_t shard, v1::ExchangeRequest* request) {
    if (!request->has_push()) return;
    v1::PushRequest& push = *request->mutable_push();
    const Push key{push.caller().incarnation(), shard, {push.clock(), push.part()}};
    state->open[{stream, request->id()}] = key;
    if (state->sent.insert(key).second) return;
    push.set_clock(push.clock() + 1);
    // The pull of the same request keeps the push's clock + 1, or the shard would refuse the request.
    if (request->has_pull()) request->mutable_pull()->set_clock(push.clock() + 1);
  };
  // A push that was overtaken counts as never sent.
  site->seams.reply = [state](uint64_t stream, uint32_t, v1::ExchangeReply* reply) {
    if (reply->push().outcome() == v1::SEND_AGAIN) state->sent.erase(state->open[{stream, reply->id()}]);
  };
}

// When two pushes are open on a stream, the newer one gets the older one's answer.
void ReplyToAnother(Site* site) {
  auto open = std::make_shared<std::map<uint64_t, std::set<uint64_t>>>();
  site->seams.request = [open](uint64_t stream, uint32_t, v1::ExchangeRequest* request) {
    if (request->has_push()) (*open)[stream].insert(request->id());
  };
  site->seams.reply = [open](uint64_t stream, uint32_t, v1::ExchangeReply* reply) {
    if (!reply->has_push() || reply->has_error()) return;
    std::set<uint64_t>& pushes = (*open)[stream];
    pushes.erase(reply->id());
    if (!pushes.empty()) reply->set_id(*pushes.rbegin());
  };
}

void AnsweredClock(Site* site, bool early) {
  site->seams.request = [early](uint64_t, uint32_t, v1::ExchangeRequest* request) {
    if (request->has_push()) {
      request->mutable_push()->set_answered_clock(early ? request->push().clock() + 1 : 0);
    }
    if (request->has_pull()) {
      request->mutable_pull()->set_answered_clock(early ? request->pull().clock() + 1 : 0);
    }
  };
}

// A worker that joins again keeps its first incarnation.
void OldIncarnation(Site* site) {
  auto first = std::make_shared<std::map<uint32_t, uint64_t>>();
  site->seams.request = [first](uint64_t, uint32_t, v1::ExchangeRequest* request) {
    const auto keep = [&](v1::Caller* caller) {
      caller->set_incarnation(first->emplace(caller->worker(), caller->incarnation()).first->second);
    };
    if (request->has_push()) keep(request->mutable_push()->mutable_caller());
    if (request->has_pull()) keep(request->mutable_pull()->mutable_caller());
  };
}

void InReplies(Site* site, std::function<void(v1::ExchangeReply*)> change) {
  site->seams.reply = [change](uint64_t, uint32_t, v1::ExchangeReply* reply) { change(reply); };
}

// A push that has to be sent again counts as done.
void OvertakenIsDone(Site* site) {
  InReplies(site, [](v1::ExchangeReply* reply) {
    if (reply->has_push() && reply->push().outcome() == v1::SEND_AGAIN) {
      reply->mutable_push()->set_outcome(v1::OK);
    }
  });
}

// A read counts as a read of the next version.
void VersionOfAnother(Site* site) {
  if (site->plan.sync()) return;
  InReplies(site, [](v1::ExchangeReply* reply) {
    if (!reply->has_pull() || reply->pull().outcome() != v1::OK) return;
    v1::Version& version = *reply->mutable_pull()->mutable_version();
    version.set_count(version.count() + 1);
  });
}

// A gradient names the newest incarnation of the shard, whichever its weights came from.
void IncarnationOfNow(Site* site) {
  auto now = std::make_shared<std::map<uint32_t, uint64_t>>();
  site->seams.request = [now](uint64_t, uint32_t shard, v1::ExchangeRequest* request) {
    if (!request->has_push() || now->count(shard) == 0) return;
    request->mutable_push()->mutable_base()->set_incarnation((*now)[shard]);
  };
  site->seams.reply = [now](uint64_t, uint32_t shard, v1::ExchangeReply* reply) {
    for (const uint64_t incarnation :
         {reply->push().version().incarnation(), reply->pull().version().incarnation()}) {
      (*now)[shard] = std::max((*now)[shard], incarnation);
    }
  };
}

// Does not hear that its shard has moved.
class StaysPut final : public ShardChannel {
 public:
  explicit StaysPut(std::unique_ptr<ShardChannel> to) : to_(std::move(to)) {}

  std::string name() const override { return to_->name(); }
  absl::Status Connect(std::chrono::steady_clock::time_point deadline, const std::string& otherwise,
                       const std::function<absl::Status()>& alive) override {
    return to_->Connect(deadline, otherwise, alive);
  }
  bool MoveTo(const std::string&) override { return false; }
  Opened Open(std::shared_ptr<DataStream::User> user, std::function<void()> gone) override {
    return to_->Open(std::move(user), std::move(gone));
  }

 private:
  const std::unique_ptr<ShardChannel> to_;
};

}  // namespace

std::vector<PlantedBug> PlantedInClients() {
  return {
      {"batch not named",
       "a batch that is handed out again cannot be told from a new one",
       {Invariant::kOnce},
       InPushes([](const Site& site, v1::PushRequest* push) {
         if (!site.plan.sync()) push->clear_batch_plus_one();
       })},
      {"retry under a new key",
       "a push that is sent again is another push to the shard",
       {Invariant::kComplete},
       RetryUnderNewKey},
      {"reply to another",
       "an answer is taken for that of another exchange",
       {Invariant::kComplete, Invariant::kProgress},
       ReplyToAnother},
      {"answered clock told early",
       "a push says that its own answer is there already",
       {Invariant::kProtocol},
       [](Site* site) { AnsweredClock(site, /*early=*/true); }},
      {"answered clock never told",
       "a restored shard is not told what was answered",
       {Invariant::kDeclared, Invariant::kProgress},
       [](Site* site) { AnsweredClock(site, /*early=*/false); }},
      {"view released early",
       "a client lets weights go while it reads them",
       {Invariant::kTorn},
       [](Site* site) { site->seams.releases_early = true; }},
      {"old incarnation kept",
       "a worker joins again and goes on as who it was",
       {Invariant::kProgress},
       OldIncarnation},
      {"overtaken is done",
       "a push that is to be sent again counts as applied",
       {Invariant::kComplete},
       OvertakenIsDone},
      {"version of another",
       "weights are taken for those of another version",
       {Invariant::kProtocol},
       VersionOfAnother},
      {"incarnation of now",
       "a gradient of an incarnation that was lost is sent to the next one as its own",
       {Invariant::kStaleIncarnation},
       IncarnationOfNow},
      {"newer base",
       "a push says that it was computed from a newer version",
       {Invariant::kProtocol},
       InPushes([](const Site&, v1::PushRequest* push) {
         push->mutable_base()->set_count(push->base().count() + 1);
       })},
      {"pull of the clock before",
       "a pull asks for one clock less than it is for",
       {Invariant::kBound},
       [](Site* site) {
         if (site->plan.sync()) return;
         site->seams.request = [](uint64_t, uint32_t, v1::ExchangeRequest* request) {
           if (request->pull().clock() > 0) request->mutable_pull()->set_clock(request->pull().clock() - 1);
         };
       }},
      {"examples not counted",
       "a push does not say how many examples it is of",
       {Invariant::kProtocol},
       InPushes([](const Site& site, v1::PushRequest* push) {
         if (site.plan.sync()) push->set_examples(1);
       })},
      {"batch of before",
       "a push names the batch before its own",
       {Invariant::kComplete},
       InPushes([](const Site& site, v1::PushRequest* push) {
         if (!site.plan.sync() && push->batch_plus_one() > 1)
           push->set_batch_plus_one(push->batch_plus_one() - 1);
       })},
      {"part of another",
       "a push names another part of its step",
       {Invariant::kProtocol},
       InPushes([](const Site& site, v1::PushRequest* push) {
         if (site.plan.sync()) push->set_part(site.plan.ledger.parts - 1 - push->part());
       })},
      {"job not checked",
       "a shard takes the push of a worker of another job, with the same rank, incarnation and clock",
       {Invariant::kComplete, Invariant::kOnce, Invariant::kAcknowledged},
       [](Site* site) { site->seams.serves_any_job = true; }},
      {"old address kept",
       "a client goes on at the address that a server had before it died",
       {Invariant::kProgress},
       [](Site* site) {
         site->seams.channel = [](std::unique_ptr<ShardChannel> channel) {
           return std::make_unique<StaysPut>(std::move(channel));
         };
       }},
  };
}

}  // namespace weir

#include "ps_server/coordinator/shards/shard_fleet.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <utility>

#include "tests/ps_server/coordinator/checkpoints_fixture.h"

namespace weir {
namespace {

// A fleet whose links connect at once, and keep the messages that they are sent.
struct Fixture : JobFixture {
  struct Link : ShardLink {
    explicit Link(std::vector<v1::ControlMessage>* messages) : sent(messages) {}
    void Send(const v1::ControlMessage& message) override { sent->push_back(message); }
    std::vector<v1::ControlMessage>* sent;
  };

  explicit Fixture(std::vector<std::string> addresses)
      : sent(addresses.size()), fleet(job, std::move(addresses), Options()) {
    fleet.Open();
  }
  ShardFleet::Options Options() {
    ShardFleet::Options options;
    options.on_report = [](uint32_t, const v1::ShardReport&) {};
    options.open_link = [this](uint32_t shard, const std::string&, const ShardLinkEvents& events) {
      events.connected();
      links[shard] = events;
      return std::make_unique<Link>(&sent[shard]);
    };
    return options;
  }
  uint64_t pings(uint32_t shard) const {
    return std::count_if(sent[shard].begin(), sent[shard].end(),
                         [](const v1::ControlMessage& message) { return message.has_ping(); });
  }
  void Attach(uint32_t shard, uint64_t incarnation) {
    v1::Attached attached;
    attached.set_incarnation(incarnation);
    fleet.Attach(shard, attached, /*revision=*/1);
  }

  // The shard reports stats with this number, and with digests of this many tables.
  void Report(uint32_t shard, uint64_t sequence, int digests = 0) {
    v1::ShardReport report;
    report.mutable_stats()->set_sequence(sequence);
    for (int i = 0; i < digests; ++i) report.mutable_stats()->add_table_digests("digest");
    links[shard].report(report);
  }

  std::vector<std::vector<v1::ControlMessage>> sent;
  std::map<uint32_t, ShardLinkEvents> links;
  ShardFleet fleet;
};

TEST_CASE("A shard goes on with what it holds, or installs; each Install has its own number") {
  Fixture f({"a:1", "b:1"});
  f.Attach(0, 7);
  f.Attach(1, 0);
  CHECK_FALSE(f.fleet.begun());
  f.fleet.Keep(0);
  CHECK(f.fleet.begun());
  CHECK(f.fleet[0].installed);
  CHECK(f.fleet[0].incarnation == 7);
  f.fleet.Install(1, {});
  CHECK(f.fleet[1].installing);
  CHECK_FALSE(f.fleet.AllInstalled());
  v1::Installed installed;
  installed.set_incarnation(9);
  f.fleet.OnInstalled(1, installed);
  CHECK(f.fleet.AllInstalled());
  CHECK(f.fleet[1].incarnation == 9);
  f.fleet.GoBack();
  CHECK_FALSE(f.fleet[0].installed);
  f.fleet.Install(0, {});
  CHECK(f.sent[1].back().install().number() == 1);
  CHECK(f.sent[0].back().install().number() == 2);
}

TEST_CASE("Pings come at intervals, and at once if something has changed") {
  Fixture f({"a:1"});
  f.fleet.PingIfDue();
  f.clock.Advance(absl::Milliseconds(499));
  f.fleet.PingIfDue();
  CHECK(f.pings(0) == 1);
  f.clock.Advance(absl::Milliseconds(1));
  f.fleet.PingIfDue();
  CHECK(f.pings(0) == 2);
  f.fleet.PingSoon();
  f.clock.Advance(absl::Milliseconds(1));
  f.fleet.PingIfDue();
  CHECK(f.pings(0) == 3);
}

TEST_CASE("The answer to the final ping is the one that follows it, until the job goes back") {
  Fixture f({"a:1"});
  f.Report(0, f.fleet.Ping());
  CHECK_FALSE(f.fleet.final_ping_sent());
  CHECK_FALSE(f.fleet.AnsweredFinalPing(f.fleet[0]));
  f.fleet.SendFinalPing();
  CHECK(f.fleet.final_ping_sent());
  CHECK_FALSE(f.fleet.AnsweredFinalPing(f.fleet[0]));
  f.Report(0, 2);
  CHECK(f.fleet.AnsweredFinalPing(f.fleet[0]));
  f.fleet.GoBack();
  CHECK_FALSE(f.fleet.final_ping_sent());
  CHECK_FALSE(f.fleet.AnsweredFinalPing(f.fleet[0]));
}

TEST_CASE("The final ping is answered once the digests of all tables are known") {
  Fixture f({"a:1"});
  f.fleet.Ping();
  CHECK_FALSE(f.sent[0].back().ping().with_table_digests());
  f.fleet.SendFinalPing(2);
  CHECK(f.sent[0].back().ping().with_table_digests());
  f.Report(0, 2);
  CHECK_FALSE(f.fleet.AnsweredFinalPing(f.fleet[0]));
  // Later pings ask for the digests, too.
  f.fleet.Ping();
  CHECK(f.sent[0].back().ping().with_table_digests());
  f.Report(0, 2, /*digests=*/2);
  CHECK(f.fleet.AnsweredFinalPing(f.fleet[0]));
  f.fleet.GoBack();
  f.fleet.Ping();
  CHECK_FALSE(f.sent[0].back().ping().with_table_digests());
}

TEST_CASE("A shard that was lost comes back once") {
  Fixture f({"a:1", "b:1"});
  f.Attach(1, 7);
  f.fleet.Lose(1, "silence", /*started=*/true);
  CHECK(f.fleet[1].lost_why == "silence");
  f.clock.Advance(absl::Seconds(3));
  CHECK_FALSE(f.fleet.OnBack(0).has_value());
  CHECK(f.fleet.OnBack(1) == absl::Seconds(3));
  CHECK(f.fleet[1].lost_why.empty());
  CHECK_FALSE(f.fleet.OnBack(1).has_value());
  CHECK(f.fleet.recoveries() == 1);
}

TEST_CASE("The number of shards is the highest that anybody has named") {
  Fixture f({"a:1", "b:1"});
  CHECK(f.fleet.known_servers() == 2);
  f.fleet.OnNamed(5);
  f.fleet.OnNamed(3);
  CHECK(f.fleet.known_servers() == 5);
}

}  // namespace
}  // namespace weir

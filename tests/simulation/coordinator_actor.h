// CoordinatorActor is the thread of a simulated process that serves a coordinator: the shipped CoordinatorRounds
// between simulated connections.
//
// What its socket calls would do is done one connection at a time: between two of them the thread may wait for a
// processor, and its process may end.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/coordinator/coordinator_rounds.h"
#include "tests/simulation/network.h"

namespace fdl::simulation {

class CoordinatorActor final : public Actor, private CoordinatorRounds::Connections {
 public:
  CoordinatorActor(Network& network, Process& process, const CoordinatorOptions& options,
                   const CoordinatorClient::Hello& own);

  void turn() override;
  bool accept(const End& end) override;
  void died() override;

  // Announces the end, and serves until each member has read it, for `patience` at most.
  void stop(int64_t patience);
  bool is_serving() const { return is_serving_; }
  // When it ended, or began to; in the time of the simulation.
  int64_t served_until() const { return served_until_; }
  bool is_empty() const { return membership().is_empty(); }
  const JobMembership& membership() const { return rounds_.membership(); }

 private:
  using Peer = CoordinatorRounds::Peer;
  struct Client {
    End end;
    std::vector<std::string> queued{};
  };
  // Messages that leave over a connection, or its close.
  struct Output {
    End end;
    std::vector<std::string> messages{};
    bool closes = false;
  };

  void receive(Peer peer);
  void write_next();
  void end();

  // ---- CoordinatorRounds::Connections ----
  void queue(Peer peer, const SharedMessage& message) override;
  void flush(Peer peer) override;
  void close(Peer peer) override;
  bool is_silent(Peer peer) const override;
  void note_own(const CoordinatorMessage& /*message*/) override {}

  CoordinatorRounds rounds_;
  std::map<Peer, Client> clients_;
  std::deque<Output> outputs_;  // of this round
  bool is_serving_ = true;
  int64_t served_until_ = kNever;
  int64_t ends_at_ = kNever;  // on its clock
};

}  // namespace fdl::simulation

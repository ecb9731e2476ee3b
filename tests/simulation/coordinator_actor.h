// CoordinatorActor is the thread of a simulated process that serves a coordinator: the shipped JobMembership between
// simulated connections.
//
// Its rounds are those of CoordinatorServer (src/bootstrap/coordinator/coordinator.cpp): what has arrived, then time,
// then all messages, one connection after another. Between two connections the thread may wait for a processor, and its
// process may end.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/coordinator/job_membership.h"
#include "tests/simulation/network.h"

namespace fdl::simulation {

class CoordinatorActor final : public Actor {
 public:
  CoordinatorActor(Network& network, Process& process, const CoordinatorOptions& options,
                   const CoordinatorClient::Hello& own);

  void turn() override;
  bool accept(const End& end) override;
  void died() override;

  // Announces the end, and serves until each member has read it, for `patience` at most.
  void stop(int64_t patience);
  bool is_serving() const { return is_serving_; }
  bool is_empty() const { return membership_.is_empty(); }
  const JobMembership& membership() const { return membership_; }

 private:
  using Peer = JobMembership::Peer;
  struct Client {
    End end;
    bool is_member = false;
  };
  struct Batch {
    Peer peer;
    std::vector<std::string> messages;
  };

  void receive(Peer peer);
  bool handle(Peer peer, Client& client, const std::string& bytes);
  bool queue_batches();
  void flush_next();
  void close(Peer peer);
  void end();

  JobMembership membership_;
  std::map<Peer, Client> clients_;
  Peer next_peer_ = 10;
  std::deque<Batch> batches_;  // of this round, in the order in which their connections are flushed
  std::vector<Peer> hang_ups_;
  bool is_serving_ = true;
  int64_t ends_at_ = kNever;  // on its clock
};

}  // namespace fdl::simulation

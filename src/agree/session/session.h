// The sessions are the two ends of an agreement as bytes: each rank has a MemberSession, and the root also has a
// RootSession. In a large group, messages travel along a tree (agreement_tree.h), whose inner ranks also have a
// RelaySession.
//
// Both are pure: the runtime carries the bytes. It must deliver a rank's messages to the root in order, and plans to
// each rank in order; any delay is allowed. The root is a rank too, and its own messages and plans take the same way.
// A session is not synchronized: the progress thread of its group calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agree/negotiation/negotiator.h"
#include "agree/tuning/step_tuner.h"
#include "base/bytes.h"

namespace fdl {

class AgreementTree;

class MemberSession {
 public:
  // All ranks of a group use the same capacity (requests, at most 65536; 0: no cache).
  explicit MemberSession(std::size_t cache_capacity);
  ~MemberSession();

  // Encodes a message that submits `requests`; an empty one is an acknowledgement. From here on the requests are
  // pending at the root, and any plan decoded later may complete them, in a bucket or in a bucket's error.
  std::vector<std::byte> encode_requests(const std::vector<Request>& requests);
  // `frozen`: this rank has frozen its optimistic order after it began so many positions; sent once for each order.
  // `shares_device`: another group of this rank uses its device too; sent once, and then this rank leaves each locked
  // order until a plan takes turns.
  std::vector<std::byte> encode_borrowed(std::span<const Request* const> requests,
                                         std::optional<uint64_t> frozen = std::nullopt, bool shares_device = false);

  // Decodes the next plan. After a failure the states of root and rank differ, and the group is lost.
  Result<Plan> decode_plan(ConstBytes bytes);

  // True when many plans have come since the last message. The root keeps state until plans are acknowledged, so a rank
  // without requests (it has joined) must then send encode_requests({}).
  bool owes_acknowledgement() const;

  // The request that all ranks cache under this name, as the last plan left it, or null.
  const Request* cached(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class RootSession {
 public:
  RootSession(NegotiatorOptions options, std::size_t cache_capacity);
  ~RootSession();

  // Takes in a message of a rank. A malformed one is rejected with a status that names the rank, and nothing of it is
  // used. A message of a rank that has left is dropped: it was still on its way when the news of the rank came.
  Status receive(int from, ConstBytes bytes, int64_t now_ns);
  // Takes in what a child of the root has relayed, message by message, in the same way. Returns the first rejected
  // message; those behind it are not used.
  struct Rejected {
    int rank;  // its sender
    Status why;
  };
  std::optional<Rejected> receive_relayed(const AgreementTree& tree, int child, ConstBytes bytes, int64_t now_ns);

  // Sets the function that is called with each request as it is taken in; an empty one ends that. It must not call the
  // session.
  void watch(std::function<void(int from, const Request&)> on_request);

  // Returns the plan for all ranks, the root's own MemberSession included, or nothing if there is nothing to do.
  // `backlog_bytes`: what was decided and has not begun on the root; see Negotiator::decide().
  //
  // A plan may lock the order (options.lock_after). The root then drops all requests that no plan has answered, also
  // those still on their way: the ranks count them as submitted to the order, and send them again after leaving it.
  //
  // While an optimistic order is in force, plans only lead out of it: one makes all ranks freeze once any rank has, and
  // one carries the least and the greatest count once all have. A rank that has left counts as having begun whatever
  // another rank has begun; if it has not, that position ends with an error.
  std::optional<std::vector<std::byte>> decide(int64_t now_ns, std::size_t backlog_bytes = 0);
  // Whether decide() has more to decide at this backlog, although no message has arrived since.
  bool continues_at(std::size_t backlog_bytes) const;
  // The root's own rank has left the locked order after running it so many times. `completed`: these are all its
  // rounds. The next plan then ends the order on all ranks and, if all take part, locks the next one.
  void left_order(uint64_t rounds, bool completed = false);
  // The last bucket of a round of the locked order has ended on the root's own rank.
  void finish_round(int64_t now_ns);
  // The tuner of the locked order; null without tuning, and before the first order.
  StepTuner* tuner();

  // As in Negotiator. A rank that has left is sent no plan, and its messages are dropped.
  void leave(int rank, const std::string& why = {});
  std::vector<Stall> stalls(int64_t now_ns);
  std::vector<Stall> waiting(std::size_t most, int64_t now_ns) const;
  int64_t next_alarm_ns() const;
  std::size_t pending() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fdl

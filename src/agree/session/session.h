// Sessions: the two ends of an agreement as bytes; a MemberSession on every rank, a RootSession on the root besides.
//
// Pure: the runtime carries the bytes. It must carry a rank's messages to the root in order, and plans to each rank in
// order; nothing else is asked of it, however late anything arrives. The root is a rank too: its own messages and plans
// take the same way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agree/negotiation/negotiator.h"
#include "base/bytes.h"

namespace fdl {

class MemberSession {
 public:
  // All ranks of a group use the same capacity (requests, at most 65536; 0: no cache).
  explicit MemberSession(std::size_t cache_capacity);
  ~MemberSession();

  // The message that submits `requests`, which may be none (an acknowledgement). From here on they are pending at the
  // root, and the plans decoded from now on may complete them: in a bucket, or in a bucket's error.
  std::vector<std::byte> encode_requests(const std::vector<Request>& requests);
  // `frozen`: this rank has frozen its blind order, after it had begun so many positions; once for each such order.
  std::vector<std::byte> encode_borrowed(std::span<const Request* const> requests,
                                         std::optional<uint64_t> frozen = std::nullopt);

  // The next plan. A failure means that root and rank no longer understand each other: the group is lost.
  Result<Plan> decode_plan(ConstBytes bytes);

  // True when many plans have come since the last message: the root keeps things until it hears that they are handled,
  // so a rank that has nothing to say (it has joined) then sends encode_requests({}).
  bool owes_acknowledgement() const;

  // The request that all ranks know under this name, as the last plan left it; null where there is none.
  const Request* known(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class RootSession {
 public:
  RootSession(NegotiatorOptions options, std::size_t cache_capacity);
  ~RootSession();

  // A message of a rank. A malformed one is refused with a status that names the rank, and nothing of it is used.
  Status receive(int from, ConstBytes bytes, int64_t now_ns);

  // From now on told each request as it is taken in; an empty function ends it. It must not call back.
  void watch(std::function<void(int from, const Request&)> on_request);

  // The plan for all ranks, the root's own MemberSession included; nothing when there is nothing to do.
  //
  // A plan may lock the order (options.lock_after). Then what ranks have asked for and no plan has answered is
  // forgotten here, also what is still on its way: ranks count it as submitted to the order, and ask again when they
  // have left it. While a blind order is in force plans only say how it is left: that all are to freeze, once any has,
  // and when all have, the least and the greatest count. A rank that has left counts as having begun what any has: if
  // it has not, that ends with an error.
  std::optional<std::vector<std::byte>> decide(int64_t now_ns);
  // The root's rank has left the locked order, after it was run so many times.
  void left_order(uint64_t rounds);

  // As in Negotiator. A rank that has left is sent no plan and is not heard any more.
  void leave(int rank, std::string why = {});
  std::vector<Stall> stalls(int64_t now_ns);
  int64_t next_alarm_ns() const;
  std::size_t pending() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fdl

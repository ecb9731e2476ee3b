// Fuzzes RootSession and MemberSession: a root gets messages of two ranks, and a member gets plans, in any order.
//
// An input is a list of records: one byte for the receiver, and a message with its length before it.
#include "agree/session/session.h"
#include "tests/fuzz/targets.h"
#include "tests/support/wire_messages.h"

namespace fdl::fuzz {
namespace {

enum Receiver : unsigned { root_from_0, root_from_1, decide, member, leave, kinds };

bool run(ConstBytes bytes) {
  NegotiatorOptions options = options_for(2);
  options.lock_after = 2;
  RootSession root(options, 4);
  MemberSession member_session(4);
  bool accepted = false;
  int64_t now = 0;
  for (Input input(bytes); !input.empty();) {
    const unsigned receiver = input.number() % kinds;
    const auto message = bytes_of(input.text());
    now += 1'000'000;
    if (receiver == root_from_0 || receiver == root_from_1) {
      const Status status = root.receive(static_cast<int>(receiver), message, now);
      FDL_CHECK(status.ok() || status.text().starts_with("rank "));
      accepted = accepted || status.ok();
    } else if (receiver == decide) {
      const auto plan = root.decide(now);
      // The root's own plan is always well-formed, whatever the ranks have sent.
      if (plan) FDL_CHECK(decode_plan(*plan).ok());
    } else if (receiver == member) {
      (void)member_session.decode_plan(message).ok();
    } else {
      root.leave(1, "killed");
    }
  }
  return accepted;
}

std::string record(Receiver receiver, const std::vector<std::byte>& message = {}) {
  return std::string(1, static_cast<char>(receiver)) + with_length(text_of(message));
}

std::string rounds_of(int count) {
  NegotiatorOptions options = options_for(2);
  options.lock_after = 2;
  RootSession root(options, 4);
  MemberSession ranks[2] = {MemberSession(4), MemberSession(4)};
  std::string input;
  for (int round = 0; round < count; ++round) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto message = ranks[rank].encode_requests({allreduce("a"), allgather("b", {rank + 1, 2})});
      input += record(static_cast<Receiver>(rank), message);
      FDL_CHECK(root.receive(rank, message, round).ok());
    }
    input += record(decide);
    const auto plan = root.decide(round);
    FDL_CHECK(plan.has_value());
    for (MemberSession& rank : ranks) FDL_CHECK(rank.decode_plan(*plan).ok());
    input += record(member, *plan);
  }
  return input;
}

std::vector<std::string> seeds() {
  return {rounds_of(1), rounds_of(2), rounds_of(1) + record(leave) + record(decide),
          record(member, encode(some_plan()))};
}

}  // namespace

const Target sessions{"sessions", run, seeds, 10'000};

}  // namespace fdl::fuzz

// These functions run one whole collective, or one whole case, without a communicator.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "contract/collectives.h"
#include "tests/support/collective_case.h"
#include "tests/support/participant.h"

namespace fdl::test {

// Polls a few times and then sleeps, so that a missing wake-up fails the test.
inline Status wait(Collectives& collectives, Completion& completion) {
  const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
  for (int idle = 0; !completion.done;) {
    if (collectives.progress() || ++idle % 50 != 0) continue;
    require(!deadline.passed(), "timed out waiting: " + collectives.phase());
    collectives.sleep_until_ready(deadline);
  }
  return completion.status;
}

inline Status call(Collectives& collectives, const CollectiveSpec& spec, Buffers buffers) {
  Completion completion;
  collectives.start(spec, buffers, completion);
  return wait(collectives, completion);
}

// Throws if a result differs from the expected bits. The case's buffers are in `memory` if it is given.
inline void check(Collectives& collectives, const CollectiveCase& c, int rank, int size,
                  CaseOnRank::Memory memory = {}) {
  CaseOnRank mine(c, rank, size, std::move(memory));
  const Status status = call(collectives, mine.spec(), mine.buffers());
  if (!status.ok()) throw std::runtime_error(c.text() + ": " + status.text());
  const std::string mismatch = mine.mismatch();
  if (!mismatch.empty()) {
    throw std::runtime_error("rank " + std::to_string(rank) + " of " + std::to_string(size) + ": " + c.text() + " " +
                             mismatch);
  }
}

}  // namespace fdl::test

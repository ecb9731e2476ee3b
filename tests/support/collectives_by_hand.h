// Collectives by hand: one whole collective, and one whole case of it, where no communicator drives them.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "contract/collectives.h"
#include "tests/support/collective_case.h"
#include "tests/support/participant.h"

namespace fdl::test {

// Looks a few times and then sleeps, so that a wake-up that is missing fails the test.
inline Status wait(Collectives& collectives, Completion& completion) {
  const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
  for (int idle = 0; !completion.done;) {
    if (collectives.progress() || ++idle % 50 != 0) continue;
    require(!deadline.passed(), "waited in vain: " + collectives.phase());
    collectives.sleep_until_ready(deadline);
  }
  return completion.status;
}

inline Status call(Collectives& collectives, const CollectiveSpec& spec, Buffers buffers) {
  Completion completion;
  collectives.start(spec, buffers, completion);
  return wait(collectives, completion);
}

// Throws where a result is not what it must be, bit by bit. The case's buffers lie in `memory` if it is given.
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

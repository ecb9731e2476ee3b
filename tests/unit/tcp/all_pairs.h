// exchange_with_all() uses every connection of a transport.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/participant.h"

namespace fdl::test {

// Every rank sends its number to each other one on every channel. All begin with the same distance between sender and
// receiver, so the two ranks of a pair use their connection at the same time.
inline void exchange_with_all(Transport& transport, int rank, int size) {
  for (int index = 0; index < kChannelCount; ++index) {
    for (int shift = 1; shift < size; ++shift) {
      const int to = (rank + shift) % size;
      const int from = (rank + size - shift) % size;
      auto mine = static_cast<uint64_t>(rank);
      const Ticket ticket = begin_send(transport, {to, index}, 9, std::as_bytes(std::span(&mine, 1)));
      EXPECT_EQ(recv_number(transport, {from, index}, 9), static_cast<uint64_t>(from));
      wait_done(transport, to, ticket);
    }
  }
}

}  // namespace fdl::test

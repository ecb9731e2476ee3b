// Tests of ordered calls whose result has arrived on a rank that reads of a loss before it has taken the result.
#include <unistd.h>

#include <farandole/farandole.hpp>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

class ArrivedResults : public testing::TestWithParam<const char*> {
 protected:
  Knobs knobs() const { return {{"transport", GetParam()}}; }
};
INSTANTIATE_TEST_SUITE_P(Losses, ArrivedResults, testing::Values("shm", "tcp"));

// Rank 1 makes the same communicators as rank 0 and begins once rank 0 has. It takes its result and is killed.
[[noreturn]] void end_with_a_result(const std::string& place, const Knobs& knobs, int started) {
  World me;
  if (open_world(place, 1, 2, knobs, me) != FDL_OK) ::_exit(1);
  fdl_comm* other = nullptr;
  if (fdl_comm_create(me.all, &other) != FDL_OK) ::_exit(2);
  float value = 10;
  if (fdl_recv(other, &value, 1, FDL_FLOAT32, 0) != FDL_OK) ::_exit(6);
  if (fdl_send(me.comm, &value, 1, FDL_FLOAT32, 0) != FDL_OK) ::_exit(3);
  if (fdl_allreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM) != FDL_OK) ::_exit(4);
  if (value != 11 || ::write(started, "x", 1) != 1) ::_exit(5);
  for (;;) ::pause();
}

TEST_P(ArrivedResults, AreReturnedAndTheNextCallNamesTheLostRank) {
  const KilledRank killed(knobs(), end_with_a_result);
  World me;
  FDL_ASSERT_OK(open_world(killed.place(), 0, 2, knobs(), me));
  fdl_comm* other = nullptr;
  FDL_ASSERT_OK(fdl_comm_create(me.all, &other));
  float received = 0;
  float value = 1;
  const float begin = 10;
  fdl_request* recv = nullptr;
  fdl_request* sum = nullptr;
  FDL_ASSERT_OK(fdl_irecv(me.comm, &received, 1, FDL_FLOAT32, 1, &recv));
  FDL_ASSERT_OK(fdl_iallreduce(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM, &sum));
  FDL_ASSERT_OK(fdl_send(other, &begin, 1, FDL_FLOAT32, 1));
  killed.wait_until_started();
  killed.kill();
  // This call ends with the news of the loss, which ends both communicators. This rank has not driven the first one.
  EXPECT_EQ(fdl_barrier(other), FDL_PEER_LOST);
  FDL_EXPECT_OK(fdl_wait(sum));
  FDL_EXPECT_OK(fdl_wait(recv));
  EXPECT_EQ(value, 11);
  EXPECT_EQ(received, 10);
  EXPECT_EQ(fdl_barrier(me.comm), FDL_PEER_LOST);
  EXPECT_EQ(fdl_last_error()->culprit_rank, 1) << fdl_last_error()->text;
  fdl_comm_destroy(other);
}

}  // namespace
}  // namespace world_test

/* 01_allreduce: the smallest complete program. It sums one number of every rank.
 *
 *   farandole run -np 4 build/bin/01_allreduce
 *
 * A world is all ranks of the job. A communicator runs collectives that every member calls in the same order. The
 * launcher passes the rank of this process and the address of the others in the environment.
 */
#include <farandole/farandole.h>
#include <stdio.h>

static int failed(void) {
  fprintf(stderr, "%s\n", fdl_last_error()->text);
  return 1;
}

int main(void) {
  fdl_world* world;
  fdl_comm* comm;
  if (fdl_world_create(NULL, &world) != FDL_OK) return failed();
  if (fdl_comm_create(fdl_group_all(world), &comm) != FDL_OK) return failed();

  float mine = (float)(fdl_comm_rank(comm) + 1), sum;
  if (fdl_allreduce(comm, &mine, &sum, 1, FDL_FLOAT32, FDL_SUM) != FDL_OK) return failed();
  printf("rank %d of %d: %g became %g\n", fdl_comm_rank(comm), fdl_comm_size(comm), mine, sum);

  fdl_comm_destroy(comm);
  fdl_world_destroy(world);
  return 0;
}

// This header declares the functions that write schedules. Each algorithm has its own file; catalog.cpp lists them all.
#pragma once

#include "algorithms/catalog.h"

namespace fdl {

Schedule ring_allreduce(const ScheduleRequest& request);
Schedule ring_reduce_scatter(const ScheduleRequest& request);
Schedule ring_allgather(const ScheduleRequest& request);

Schedule recursive_doubling_allreduce(const ScheduleRequest& request);
Schedule recursive_doubling_allgather(const ScheduleRequest& request);  // powers of two only

Schedule halving_doubling_allreduce(const ScheduleRequest& request);
Schedule halving_reduce_scatter(const ScheduleRequest& request);

Schedule binomial_tree_allreduce(const ScheduleRequest& request);
Schedule binomial_tree_reduce(const ScheduleRequest& request);
Schedule binomial_tree_broadcast(const ScheduleRequest& request);
Schedule binomial_tree_gather(const ScheduleRequest& request);
Schedule binomial_tree_scatter(const ScheduleRequest& request);
Schedule binomial_tree_barrier(const ScheduleRequest& request);

Schedule double_binary_tree_allreduce(const ScheduleRequest& request);
Schedule multi_level_allreduce(const ScheduleRequest& request);       // reads levels
Schedule multi_level_reduce_scatter(const ScheduleRequest& request);  // reads levels
Schedule multi_level_allgather(const ScheduleRequest& request);       // reads levels
Schedule two_level_allreduce(const ScheduleRequest& request);         // reads ranks_per_host
Schedule two_level_alltoall(const ScheduleRequest& request);          // reads ranks_per_host; chunks of one size

Schedule direct_allreduce(const ScheduleRequest& request);
Schedule direct_reduce(const ScheduleRequest& request);
Schedule direct_reduce_scatter(const ScheduleRequest& request);
Schedule direct_allgather(const ScheduleRequest& request);
Schedule direct_gather(const ScheduleRequest& request);
Schedule direct_scatter(const ScheduleRequest& request);

Schedule chain_broadcast(const ScheduleRequest& request);
Schedule scatter_allgather_broadcast(const ScheduleRequest& request);

Schedule pairwise_alltoall(const ScheduleRequest& request);
Schedule bruck_alltoall(const ScheduleRequest& request);  // chunks of one size
Schedule bruck_allgather(const ScheduleRequest& request);
Schedule bruck_reduce_scatter(const ScheduleRequest& request);
Schedule bruck_allreduce(const ScheduleRequest& request);

Schedule dissemination_barrier(const ScheduleRequest& request);

}  // namespace fdl

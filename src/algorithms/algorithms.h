// Algorithms: the functions that write schedules, one file each; catalog.cpp has their rows.
#pragma once

#include "algorithms/catalog.h"

namespace fdl {

Schedule ring_allreduce(const ScheduleRequest& request);
Schedule ring_reduce_scatter(const ScheduleRequest& request);
Schedule ring_allgather(const ScheduleRequest& request);

Schedule recursive_doubling_allreduce(const ScheduleRequest& request);
Schedule recursive_doubling_allgather(const ScheduleRequest& request);  // powers of two only

Schedule direct_allreduce(const ScheduleRequest& request);
Schedule direct_reduce(const ScheduleRequest& request);
Schedule direct_reduce_scatter(const ScheduleRequest& request);
Schedule direct_allgather(const ScheduleRequest& request);
Schedule direct_gather(const ScheduleRequest& request);
Schedule direct_scatter(const ScheduleRequest& request);

}  // namespace fdl

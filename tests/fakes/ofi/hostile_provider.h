// The hostile provider: a provider of libfabric that does whatever EFA may do, among the threads of one process. It
// answers to the name `efa` and is loaded by the real libfabric, through FI_PROVIDER_PATH.
//
// Messages and writes overtake each other. Any call may be refused for a while (FI_EAGAIN). Completions come late and
// in any order. Memory must be registered on both sides, and the endpoint bound to it. Messages and writes are short. A
// mistake of the caller, as an operation whose memory is not registered, ends the process with a line that names it.
#pragma once

#include <cstdint>

extern "C" {

// What has happened since the last call of hostile_begin().
struct HostileCounts {
  uint64_t messages;
  uint64_t writes;
  uint64_t overtaken;  // messages and writes that were delivered after one that was sent later to the same endpoint
  uint64_t refused;    // calls that got FI_EAGAIN
  uint64_t failed;     // operations that completed with an error
  uint64_t rejected;   // writes to memory that is not registered any more
};

// Begins a run with this seed. A pool of two devices, whose second one is slower, has `devices` = 2.
void hostile_begin(uint64_t seed, int devices);
// The next `count` messages or writes complete with an error that has this code of EFA.
void hostile_fail(int count, int efa_code);
HostileCounts hostile_counts();
}

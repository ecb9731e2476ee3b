// The hostile provider: a provider of libfabric that does whatever EFA may do, among the threads of one process. It
// answers to the name `efa` and is loaded by the real libfabric, through FI_PROVIDER_PATH.
//
// Messages and writes overtake each other. Any call may be refused for a while (FI_EAGAIN). Completions come late and
// in any order. Memory must be registered on both sides, and the endpoint bound to it. Messages and writes are short.
// Registered memory that is mapped from a file must stay that file's: a stale registration is found by it. The end of
// an endpoint cancels what is in flight. A mistake of the caller, as an operation whose memory is not registered, ends
// the process with a line that names it.
#pragma once

#include <cstdint>

extern "C" {

// What has happened since the last call of hostile_begin().
struct HostileCounts {
  uint64_t messages;
  uint64_t writes;
  uint64_t overtaken;      // messages and writes that were delivered after one that was sent later to the same endpoint
  uint64_t refused;        // calls that got FI_EAGAIN
  uint64_t failed;         // operations that completed with an error
  uint64_t rejected;       // writes to memory that is not registered any more
  uint64_t cancelled;      // operations that were in flight when their endpoint ended
  uint64_t registrations;  // of memory
};

// Begins a run with this seed. A pool of two devices, whose second one is slower, has `devices` = 2.
void hostile_begin(uint64_t seed, int devices);

// What the provider offers from now on, until the next hostile_begin(): the fabric `efa`, `efa-direct`, both or none.
// Without `local_registration` the provider registers sources itself, as EFA does; `efa-direct` never does.
void hostile_offer(int efa, int direct, int local_registration);

// The next `count` messages or writes complete with an error that has this code of EFA.
void hostile_fail(int count, int efa_code);

// The calls that hostile_break() can make fail.
enum HostileCall { hostile_register = 0, hostile_insert = 1, hostile_open_endpoint = 2 };
// After `after` more calls of this kind, all calls of it fail with this error of libfabric, as -FI_ENOMEM.
void hostile_break(enum HostileCall call, int after, int error);
// From now on this device is gone, for the endpoints that were opened before: calls return -FI_ENODEV.
void hostile_lose_device(int device);
// From now on nothing reaches this endpoint's rank any more, as if its process were stopped. Ranks are numbered in the
// order in which their endpoints were opened, all devices of one rank together.
void hostile_freeze(int endpoint);

HostileCounts hostile_counts(void);
}

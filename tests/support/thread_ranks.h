// run_thread_ranks() runs N communicators over loopback, one per thread, and collectives that must succeed.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "tests/support/ranks.h"
#include "transports/loopback/loopback_transport.h"

namespace fdl::test {

inline Config make_config(const std::map<std::string, std::string>& options = {}) {
  auto all = options;
  all.try_emplace("spin_us", "0");
  return require(Config::read(Environment({}), all));
}

inline std::string unique_id() {
  static std::atomic<int> last{0};
  return "test/" + std::to_string(++last);
}

// World ranks are 10 more than ranks, so that mixing the two up is noticed.
inline Membership make_membership(const std::string& id, int rank, int size, const Config& config) {
  Membership membership{.id = id, .rank = rank, .config = &config, .deadline = Deadline::after_seconds(30)};
  for (int i = 0; i < size; ++i) {
    membership.members.edit().push_back(
        {.world_rank = 10 + i, .host_id = "h", .host_name = "host-" + std::to_string(i)});
  }
  return membership;
}

inline std::unique_ptr<Communicator> make_communicator(const std::string& id, int rank, int size, const Config& config,
                                                       SuspectHook suspect = {}) {
  const Membership membership = make_membership(id, rank, size, config);
  Communicator::Parts parts{.id = id, .rank = rank, .members = membership.members, .config = &config};
  parts.shape = {.ranks = size, .hosts = 1, .ranks_per_host = size};
  if (size > 1) parts.transport = require(connect_loopback(membership));
  parts.suspect = std::move(suspect);
  return require(Communicator::make(std::move(parts)));
}

// Starts one collective and waits for it.
inline Status call(Communicator& comm, const CollectiveSpec& spec, const void* input, void* output,
                   Deadline deadline = Deadline::after_seconds(60)) {
  Operation operation;
  operation.spec = spec;
  operation.buffers = {input, output};
  comm.start(operation);
  return comm.wait(operation.completion, deadline);
}

inline Status barrier(Communicator& comm) { return call(comm, {.collective = Collective::barrier}, nullptr, nullptr); }

// Runs work(communicator) on each of `size` ranks.
inline void run_thread_ranks(int size, const Config& config, const std::function<void(Communicator&)>& work) {
  const std::string id = unique_id();
  run_ranks(size, [&](int rank) {
    auto comm = make_communicator(id, rank, size, config);
    work(*comm);
  });
}

}  // namespace fdl::test

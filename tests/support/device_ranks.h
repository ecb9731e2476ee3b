// run_device_ranks() runs N communicators over loopback, one per thread, each with a device of its own. CaseOnDevice
// runs cases on its memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/device/host_device.h"
#include "tests/fakes/device/host_library.h"
#include "tests/support/collective_case.h"
#include "tests/support/thread_ranks.h"

namespace fdl::test {

// The communicator, device and stream of one rank.
struct DeviceRank {
  Communicator& comm;
  HostDevice& device;
  Stream stream = nullptr;
  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }
};

struct DeviceRanks {
  Config config = make_config();
  HostDevice::Options device = {};
  // Returns Communicator::Parts::device_library of a rank; empty: none.
  std::function<std::function<Result<DeviceLibrary*>()>(int rank)> library = {};
  // Edits the parts of a communicator before it is made.
  std::function<void(Communicator::Parts&)> change = {};
};

inline std::unique_ptr<Communicator> make_device_communicator(const DeviceRanks& setup, const std::string& id, int rank,
                                                              int size) {
  const Membership membership = make_membership(id, rank, size, setup.config);
  Communicator::Parts parts{.id = id, .rank = rank, .members = membership.members, .config = &setup.config};
  parts.shape = {.ranks = size, .hosts = 1, .ranks_per_host = size};
  if (size > 1) parts.transport = require(connect_loopback(membership));
  if (setup.library) parts.device_library = setup.library(rank);
  parts.suspect = [](Communicator&, int64_t) {};
  if (setup.change) setup.change(parts);
  return require(Communicator::make(std::move(parts)));
}

// Runs work on each of `size` ranks. The devices outlive all communicators, and everything on them must be released.
inline void run_device_ranks(int size, const DeviceRanks& setup, const std::function<void(DeviceRank&)>& work) {
  const std::string id = unique_id();
  std::vector<std::unique_ptr<HostDevice>> devices;
  for (int rank = 0; rank < size; ++rank) {
    HostDevice::Options options = setup.device;
    options.index = rank;
    options.seed += static_cast<uint64_t>(rank);
    devices.push_back(std::make_unique<HostDevice>(options));
  }
  run_ranks(size, [&](int rank) {
    HostDevice& device = *devices[static_cast<std::size_t>(rank)];
    auto comm = make_device_communicator(setup, id, rank, size);
    DeviceRank me{*comm, device, require(device.make_stream())};
    const auto clean_up = [&] {
      comm.reset();
      device.end_stream(me.stream);
    };
    try {
      work(me);
    } catch (...) {
      clean_up();
      throw;
    }
    clean_up();
    require(device.left_over().empty(), "left on the device: " + device.left_over());
  });
}

// A case's buffers on the host and copies of them on a device.
class CaseOnDevice {
 public:
  CaseOnDevice(const CollectiveCase& c, DeviceRank& me)
      : me_(me), case_(c, me.rank(), me.size(), [this](std::size_t bytes) { return add(bytes); }) {}
  ~CaseOnDevice() {
    for (const Block& block : blocks_) me_.device.release(block.there);
  }

  CollectiveSpec spec() const {
    CollectiveSpec spec = case_.spec();
    spec.device = &me_.device;
    spec.stream = me_.stream;
    return spec;
  }
  Buffers buffers() {
    const Buffers here = case_.buffers();
    return {there(static_cast<const std::byte*>(here.input)), there(static_cast<std::byte*>(here.output))};
  }
  void upload() {
    for (const Block& block : blocks_) me_.device.upload(me_.stream, block.there, block.here.get(), block.bytes);
  }
  // Returns "" or a description of the error. The result is read on the user's stream, without any other wait.
  std::string mismatch() {
    for (const Block& block : blocks_) me_.device.download(me_.stream, block.here.get(), block.there, block.bytes);
    return case_.mismatch();
  }
  // Runs the whole case and waits for it.
  std::string run(CollectiveSpec spec) {
    upload();
    Operation operation;
    operation.spec = spec;
    operation.buffers = buffers();
    me_.comm.start(operation);
    const Status outcome = me_.comm.wait(operation.completion, Deadline::after_seconds(60));
    return outcome.ok() ? mismatch() : outcome.text();
  }
  std::string run() { return run(spec()); }

 private:
  struct Block {
    std::unique_ptr<std::byte[]> here;
    std::byte* there = nullptr;
    std::size_t bytes = 0;
  };

  std::byte* add(std::size_t bytes) {
    Block block{std::make_unique<std::byte[]>(std::max(bytes, std::size_t{1})),
                static_cast<std::byte*>(require(me_.device.allocate(bytes))), bytes};
    blocks_.push_back(std::move(block));
    return blocks_.back().here.get();
  }
  // Ranks without input or output may pass null.
  void* there(const std::byte* here) const {
    for (const Block& block : blocks_) {
      if (here >= block.here.get() && here < block.here.get() + block.bytes) {
        return block.there + (here - block.here.get());
      }
    }
    return nullptr;
  }

  DeviceRank& me_;
  std::vector<Block> blocks_;
  CaseOnRank case_;
};

inline void run_case(const CollectiveCase& c, DeviceRank& me, std::string_view algorithm = "auto") {
  CaseOnDevice on_device(c, me);
  CollectiveSpec spec = on_device.spec();
  spec.algorithm = algorithm;
  const std::string mismatch = on_device.run(spec);
  require(mismatch.empty(),
          c.text() + " on rank " + std::to_string(me.rank()) + " of " + std::to_string(me.size()) + ": " + mismatch);
}

// A case with `base` elements in the vector, or about as many in each block. Uneven blocks include an empty one.
inline CollectiveCase make_case(Collective collective, Dtype dtype, int size, std::size_t base, bool even,
                                bool in_place, uint64_t seed) {
  CollectiveCase c{.collective = collective, .dtype = dtype, .in_place = in_place, .seed = seed};
  c.root = static_cast<int>(seed % static_cast<uint64_t>(size));
  c.count = base;
  const auto ranks = static_cast<std::size_t>(size);
  const auto block = [&](std::size_t a, std::size_t b) {
    return even ? base : (a + b) % 3 == 1 ? 0 : base + 3 * (a + b);
  };
  const bool vector = collective == Collective::allreduce || collective == Collective::reduce ||
                      collective == Collective::broadcast || collective == Collective::barrier;
  if (collective == Collective::alltoall) {
    c.exchanged.assign(ranks, std::vector<std::size_t>(ranks));
    for (std::size_t from = 0; from < ranks; ++from) {
      for (std::size_t to = 0; to < ranks; ++to) c.exchanged[from][to] = block(from, to);
    }
    c.count = even ? base : 0;
  } else if (!vector) {
    for (std::size_t r = 0; r < ranks; ++r) c.counts.push_back(block(r, 0));
    c.count = 0;
  }
  return c;
}

}  // namespace fdl::test

// These helpers configure ranks whose collectives are staged or run by a library, and make vectors of ones on their
// devices.
#pragma once

#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/device_ranks.h"

namespace fdl::test {

inline constexpr std::size_t kSegment = 256;  // bytes

inline DeviceRanks staging(std::map<std::string, std::string> options = {}) {
  options.try_emplace("device_staging_bytes", std::to_string(kSegment));
  options.try_emplace("deterministic", "1");
  options.try_emplace("slice_bytes", "96");
  options.try_emplace("suspect_after_s", "0.01");
  return {.config = make_config(options)};
}

inline DeviceRanks with_library(HostLibrary& library, std::map<std::string, std::string> options = {}) {
  DeviceRanks setup = staging(std::move(options));
  setup.library = [&library](int) { return [&library]() -> Result<DeviceLibrary*> { return &library; }; };
  return setup;
}

inline Status allreduce(DeviceRank& me, void* memory, std::size_t count) {
  return call(me.comm, {.dtype = Dtype::int64, .count = count, .device = &me.device, .stream = me.stream}, memory,
              memory);
}

// A vector of ones on the device, released at the end of the scope.
class Ones {
 public:
  Ones(DeviceRank& me, std::size_t count) : me_(me), count_(count) {
    memory_ = require(me.device.allocate(count * 8));
    const std::vector<int64_t> ones(count, 1);
    me.device.upload(me.stream, memory_, ones.data(), count * 8);
  }
  ~Ones() { me_.device.release(memory_); }
  void* memory() const { return memory_; }
  bool are(int64_t value) const {
    std::vector<int64_t> values(count_);
    me_.device.download(me_.stream, values.data(), memory_, count_ * 8);
    return values == std::vector<int64_t>(count_, value);
  }

 private:
  DeviceRank& me_;
  std::size_t count_;
  void* memory_;
};

// Whether work failed, which it must do on all ranks or on none. Rank 1's error contains `fallen`, that of the others
// `seen`.
inline bool fails_everywhere(int size, const DeviceRanks& setup, const std::function<Status(DeviceRank&)>& work,
                             const std::string& fallen, const std::string& seen) {
  std::atomic<int> failed{0};
  run_device_ranks(size, setup, [&](DeviceRank& me) {
    const Status outcome = work(me);
    if (outcome.ok()) return;
    ++failed;
    EXPECT_THAT(outcome.text(), testing::HasSubstr(me.rank() == 1 ? fallen : seen));
  });
  EXPECT_TRUE(failed == 0 || failed == size) << failed;
  return failed > 0;
}

}  // namespace fdl::test

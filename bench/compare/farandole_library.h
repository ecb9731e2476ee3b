// Adapts farandole to Library: an ordered communicator of the C API, with ordinary memory or memory of fdl_alloc().
#pragma once

#include "cli/opened_world.h"
#include "farandole/farandole.h"
#include "measure.h"

namespace compare {

inline void check(fdl_result result) {
  if (result != FDL_OK) stop(fdl_last_error()->text);
}

// The communicator is used by one thread. A failure of any call ends the rank with the text of the error.
class Farandole : public Library {
 public:
  // `rendezvous` is the same on all ranks, and no other job uses it.
  Farandole(const Options& options, int rank, const std::string& rendezvous)
      : own_memory_(options.mode == "own-memory") {
    // Names and values in turn; they must live until open() returns.
    std::vector<const char*> knobs;  // without --transport the library chooses
    if (!options.transport.empty()) knobs = {"transport", options.transport.c_str()};
    const fdl::OpenedWorld::Place here{
        .rank = rank, .size = options.ranks, .rendezvous = rendezvous, .job_key = "a comparison on one host"};
    if (!opened_.open(here, knobs)) stop(fdl_last_error()->text);
  }

  fdl_group* group() { return fdl_group_all(opened_.world); }
  fdl_comm* comm() { return opened_.comm; }
  int rank() const override { return fdl_comm_rank(opened_.comm); }
  int size() const override { return fdl_comm_size(opened_.comm); }
  void barrier() override { check(fdl_barrier(opened_.comm)); }
  void allreduce(const float* input, float* output, std::size_t count) override {
    check(fdl_allreduce(opened_.comm, input, output, count, FDL_FLOAT32, FDL_SUM));
  }
  void max(std::vector<double>& values) override {
    check(fdl_allreduce(opened_.comm, values.data(), values.data(), values.size(), FDL_FLOAT64, FDL_MAX));
  }
  void from_first_rank(double& value) override { check(fdl_broadcast(opened_.comm, &value, 1, FDL_FLOAT64, 0)); }
  // Memory of fdl_alloc() is what all ranks of the host map; aligned_alloc() stands for a framework's own memory.
  float* allocate(std::size_t count) override {
    if (!own_memory_)
      return static_cast<float*>(std::aligned_alloc(4096, (count * sizeof(float) + 4095) / 4096 * 4096));
    void* memory = nullptr;
    check(fdl_alloc(opened_.world, count * sizeof(float), &memory));
    return static_cast<float*>(memory);
  }

 private:
  bool own_memory_;
  fdl::OpenedWorld opened_;
};

}  // namespace compare

// Adapts farandole to Library: an ordered communicator of the C API, with ordinary memory or memory of fdl_alloc().
#pragma once

#include "farandole/farandole.h"
#include "measure.h"

namespace compare {

inline void check(fdl_result result) {
  if (result != FDL_OK) stop(fdl_last_error()->text);
}

class Farandole : public Library {
 public:
  // `rendezvous` is the same on all ranks, and no other job uses it.
  Farandole(const Options& options, int rank, const std::string& rendezvous)
      : own_memory_(options.mode == "own-memory") {
    const char* knobs[] = {"transport", options.transport.c_str()};
    fdl_world_options world_options;
    fdl_world_options_init(&world_options);
    world_options.rank = rank;
    world_options.size = options.ranks;
    world_options.rendezvous = rendezvous.c_str();
    world_options.job_key = "a comparison on one host";
    world_options.options = knobs;
    world_options.option_count = options.transport.empty() ? 0 : 1;
    check(fdl_world_create(&world_options, &world_));
    check(fdl_comm_create(fdl_group_all(world_), &comm_));
  }
  ~Farandole() override {
    fdl_comm_destroy(comm_);
    fdl_world_destroy(world_);
  }
  Farandole(const Farandole&) = delete;
  Farandole& operator=(const Farandole&) = delete;

  fdl_group* group() { return fdl_group_all(world_); }
  fdl_comm* comm() { return comm_; }
  int rank() const override { return fdl_comm_rank(comm_); }
  int size() const override { return fdl_comm_size(comm_); }
  void barrier() override { check(fdl_barrier(comm_)); }
  void allreduce(const float* input, float* output, std::size_t count) override {
    check(fdl_allreduce(comm_, input, output, count, FDL_FLOAT32, FDL_SUM));
  }
  void max(std::vector<double>& values) override {
    check(fdl_allreduce(comm_, values.data(), values.data(), values.size(), FDL_FLOAT64, FDL_MAX));
  }
  void from_first_rank(double& value) override { check(fdl_broadcast(comm_, &value, 1, FDL_FLOAT64, 0)); }
  float* allocate(std::size_t count) override {
    if (!own_memory_)
      return static_cast<float*>(std::aligned_alloc(4096, (count * sizeof(float) + 4095) / 4096 * 4096));
    void* memory = nullptr;
    check(fdl_alloc(world_, count * sizeof(float), &memory));
    return static_cast<float*>(memory);
  }

 private:
  bool own_memory_;
  fdl_world* world_ = nullptr;
  fdl_comm* comm_ = nullptr;
};

}  // namespace compare

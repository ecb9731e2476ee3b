// Tests of fdl_alloc and fdl_free: memory that all ranks of a host map, through the C API alone.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <latch>
#include <mutex>

#include "tests/support/worlds.h"

namespace {

using namespace world_test;
using testing::HasSubstr;

// Collects the lines of the log during its lifetime.
class Lines {
 public:
  Lines() {
    fdl_log_sink(
        [](fdl_log_level, const char* line, void* self) {
          auto* lines = static_cast<Lines*>(self);
          const std::lock_guard lock(lines->mutex_);
          lines->text_ += std::string(line) + "\n";
        },
        this);
  }
  ~Lines() { fdl_log_sink(nullptr, nullptr); }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

constexpr std::size_t kCount = 300'000;

float* floats(fdl_world* world, std::size_t count) {
  void* memory = nullptr;
  EXPECT_EQ(fdl_alloc(world, count * sizeof(float), &memory), FDL_OK) << fdl_last_error()->text;
  return static_cast<float*>(memory);
}

bool all_are(const float* values, std::size_t count, float expected) {
  for (std::size_t i = 0; i < count; ++i) {
    if (values[i] != expected) return false;
  }
  return true;
}

TEST(Memory, IsZeroedAlignedAndUsableInCollectives) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, {}, [size](World& world) {
      float* values = floats(world.world, kCount);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(values) % 64, 0u);
      EXPECT_TRUE(all_are(values, kCount, 0));
      std::fill_n(values, kCount, static_cast<float>(world.rank + 1));
      FDL_EXPECT_OK(fdl_allreduce(world.comm, values, values, kCount, FDL_FLOAT32, FDL_SUM));
      EXPECT_TRUE(all_are(values, kCount, static_cast<float>(size * (size + 1) / 2)));
      FDL_EXPECT_OK(fdl_allreduce(world.comm, values, values, kCount, FDL_FLOAT32, FDL_AVERAGE));
      EXPECT_TRUE(all_are(values, kCount, static_cast<float>(size * (size + 1) / 2)));
      fdl_free(values);
    });
  }
}

TEST(Memory, WorksForSingleAndFusedNamedOperations) {
  run_ranks(2, {}, [](World& world) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float*> tensors;
      std::vector<fdl_operation> operations;
      const int64_t shape[] = {static_cast<int64_t>(kCount)};
      const std::string names[] = {"a", "b", "c"};
      for (const std::string& name : names) {
        float* values = name == "b" ? new float[kCount] : floats(world.world, kCount);
        std::fill_n(values, kCount, static_cast<float>(world.rank + round));
        tensors.push_back(values);
        fdl_operation operation;
        fdl_operation_init(&operation);
        operation.name = name.c_str();
        operation.input.data = operation.output = values;
        operation.input.ndim = 1;
        operation.input.shape = shape;
        operations.push_back(operation);
      }
      fdl_handle* handle = nullptr;
      FDL_ASSERT_OK(fdl_submit(world.all, operations.data(), operations.size(), &handle));
      FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
      fdl_handle_free(handle);
      for (const float* values : tensors) EXPECT_TRUE(all_are(values, kCount, static_cast<float>(2 * round + 1)));
      fdl_free(tensors[0]);
      delete[] tensors[1];
      fdl_free(tensors[2]);
    }
  });
}

TEST(Memory, OutlivesItsWorldUntilItIsFreed) {
  float* kept[2] = {};
  run_ranks(2, {}, [&](World& world) {
    float* values = floats(world.world, kCount);
    std::fill_n(values, kCount, 1.0f);
    FDL_EXPECT_OK(fdl_allreduce(world.comm, values, values, kCount, FDL_FLOAT32, FDL_SUM));
    kept[world.rank] = values;
  });
  for (float* values : kept) {
    EXPECT_TRUE(all_are(values, kCount, 2));
    std::fill_n(values, kCount, 3.0f);
  }
  // A later world treats it as any other memory.
  run_ranks(2, {}, [&](World& world) {
    float* values = kept[world.rank];
    FDL_EXPECT_OK(fdl_allreduce(world.comm, values, values, kCount, FDL_FLOAT32, FDL_SUM));
    EXPECT_TRUE(all_are(values, kCount, 6));
  });
  for (float* values : kept) fdl_free(values);
}

TEST(Memory, WorksInGroupsAndSplits) {
  run_ranks(4, {{"memory_bytes", "64M"}}, [](World& world) {
    fdl_group* part = nullptr;
    FDL_ASSERT_OK(fdl_group_split(world.all, world.rank % 2, 0, &part));
    fdl_comm* comm = nullptr;
    FDL_ASSERT_OK(fdl_comm_create(part, &comm));
    float* values = floats(world.world, kCount);
    std::fill_n(values, kCount, static_cast<float>(world.rank));
    FDL_EXPECT_OK(fdl_allreduce(comm, values, values, kCount, FDL_FLOAT32, FDL_SUM));
    EXPECT_TRUE(all_are(values, kCount, static_cast<float>(2 + 2 * (world.rank % 2))));
    fdl_free(values);
    fdl_comm_destroy(comm);
    fdl_group_destroy(part);
  });
}

TEST(Memory, ForkedChildSharesTheParentsMemory) {
  run_ranks(2, {}, [](World& world) {
    float* values = floats(world.world, kCount);
    std::fill_n(values, kCount, 4.0f);
    if (world.rank == 0) {
      const pid_t child = ::fork();
      if (child == 0) {
        void* more = nullptr;
        const bool refused = fdl_alloc(world.world, 100, &more) == FDL_NOT_INITIALIZED;
        fdl_free(values);  // the parent still needs it
        ::_exit(refused ? 0 : 1);
      }
      int state = 0;
      ::waitpid(child, &state, 0);
      EXPECT_EQ(state, 0);
    }
    FDL_EXPECT_OK(fdl_allreduce(world.comm, values, values, kCount, FDL_FLOAT32, FDL_SUM));
    EXPECT_TRUE(all_are(values, kCount, 8));
    fdl_free(values);
  });
}

// ---- error paths ----

TEST(Memory, ExhaustedSharedMemoryFallsBackWithOneWarning) {
  Lines lines;
  run_ranks(2, {{"memory_bytes", "2M"}}, [](World& world) {
    for (int i = 0; i < 3; ++i) {
      float* values = floats(world.world, 2 * kCount);  // 2.4 MB
      std::fill_n(values, 2 * kCount, 1.0f);
      FDL_EXPECT_OK(fdl_allreduce(world.comm, values, values, 2 * kCount, FDL_FLOAT32, FDL_SUM));
      EXPECT_TRUE(all_are(values, 2 * kCount, 2));
      fdl_free(values);
    }
  });
  const std::string text = lines.text();
  EXPECT_THAT(text, HasSubstr("FARANDOLE_MEMORY_BYTES"));
  EXPECT_EQ(text.find("ordinary memory is used"), text.rfind("ordinary memory is used")) << text;
}

TEST(Memory, IsOrdinaryIfSharedMemoryIsNotAllowed) {
  for (const Knobs& knobs : {Knobs{{"memory_bytes", "0"}}, Knobs{{"transport", "tcp"}}}) {
    run_ranks(2, knobs, [](World& world) {
      float* values = floats(world.world, kCount);
      std::fill_n(values, kCount, 1.0f);
      FDL_EXPECT_OK(fdl_allreduce(world.comm, values, values, kCount, FDL_FLOAT32, FDL_SUM));
      EXPECT_TRUE(all_are(values, kCount, 2));
      fdl_free(values);
    });
  }
}

TEST(Memory, RefusesMoreThanTheHostHas) {
  run_ranks(2, {}, [](World& world) {
    void* memory = nullptr;
    EXPECT_EQ(fdl_alloc(world.world, ~std::size_t{0} / 4, &memory), FDL_RESOURCE);
    EXPECT_THAT(fdl_last_error()->text, HasSubstr("bytes"));
    EXPECT_EQ(fdl_alloc(world.world, 100, nullptr), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_alloc(nullptr, 100, &memory), FDL_NOT_INITIALIZED);
  });
  fdl_free(nullptr);
}

}  // namespace

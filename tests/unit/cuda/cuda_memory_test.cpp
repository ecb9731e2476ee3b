// These tests cover which calls of the driver allocate memory: on threads of the library none that waits for the
// device, and pinned memory on the NUMA node of the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "base/thread_role.h"
#include "cuda/cuda_device.h"
#include "cuda/pinned_memory.h"
#include "tests/fakes/cuda/fake_cuda.h"

extern "C" int cuStreamSynchronize(void* stream);

namespace fdl {
namespace {

using namespace cuda;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::chrono::seconds kLong{20};

Config fake_driver_config() {
  Config config;
  config.cuda_library = FDL_FAKE_CUDA;
  return config;
}

// ---- Memory of the device ----

class DeviceAllocations : public testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("FAKE_CUDA_DEVICES", "4", 1); }
  void SetUp() override {
    auto opened = open_cuda_device(0, fake_driver_config());
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    device_ = opened.take();
    stream_ = *device_->make_stream();
    fake_cuda_allocations_wait(1);
  }
  void TearDown() override {
    fake_cuda_allocations_wait(0);
    fake_cuda_go_on();
    cuStreamSynchronize(stream_);
    device_->end_stream(stream_);
    device_ = nullptr;
    EXPECT_EQ(fake_cuda_device_bytes(), 0u);
    EXPECT_EQ(fake_cuda_pinned_bytes(), 0u);
  }
  // Work that runs until fake_cuda_go_on().
  void keep_busy() {
    fake_cuda_hold();
    ASSERT_EQ(fake_cuda_queue(
                  stream_, [](void*) {}, nullptr),
              0);
  }
  // Runs a function on a thread of the library.
  template <class Function>
  static auto on_library_thread(Function function) {
    return std::async(std::launch::async, [function] {
      is_library_thread = true;
      return function();
    });
  }

  std::shared_ptr<Device> device_;
  Stream stream_ = nullptr;
};

// A kernel of NCCL that waits for a peer may be on the device, and the peer may wait for the thread that allocates.
TEST_F(DeviceAllocations, OfTheLibrarysThreadsDoNotWaitForTheDevice) {
  keep_busy();
  auto taken = on_library_thread([this] { return *device_->allocate(5000); });
  ASSERT_EQ(taken.wait_for(kLong), std::future_status::ready);
  void* const memory = taken.get();
  auto released = on_library_thread([this, memory] { device_->release(memory); });
  EXPECT_EQ(released.wait_for(kLong), std::future_status::ready);
  fake_cuda_go_on();
  // Both kinds of memory are freed by the right call: with the device.
  device_->release(*device_->allocate(5000));
  device_->release(*device_->allocate(70'000));
}

// A thread of the program drives while it waits.
TEST_F(DeviceAllocations, OfThreadsThatDriveDoNotWaitForTheDevice) {
  keep_busy();
  auto driven = std::async(std::launch::async, [this] {
    drives_progress = true;
    device_->release(*device_->allocate(5000));
  });
  EXPECT_EQ(driven.wait_for(kLong), std::future_status::ready);
  fake_cuda_go_on();
}

// The program's thread may wait in the driver while the device waits for work of a thread of the library.
TEST_F(DeviceAllocations, OfTheProgramDoNotStopThoseOfTheLibrary) {
  keep_busy();
  auto by_program = std::async(std::launch::async, [this] { return *device_->allocate(5000); });
  EXPECT_EQ(by_program.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout) << "it waits";
  auto by_library = on_library_thread([this] {
    void* const memory = *device_->allocate(5000);
    device_->release(memory);
  });
  EXPECT_EQ(by_library.wait_for(kLong), std::future_status::ready);
  fake_cuda_go_on();
  device_->release(by_program.get());
}

TEST_F(DeviceAllocations, FreedByTheProgramDoNotStopThoseOfTheLibrary) {
  std::vector<void*> kept;  // more than the cache keeps, in blocks that are not of the pool
  for (int i = 0; i < 20; ++i) kept.push_back(*device_->allocate(std::size_t{28} << 20));
  keep_busy();
  auto by_program = std::async(std::launch::async, [&] {
    for (void* memory : kept) device_->release(memory);
  });
  EXPECT_EQ(by_program.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout) << "it waits";
  auto by_library = on_library_thread([this] { device_->release(*device_->allocate(5000)); });
  EXPECT_EQ(by_library.wait_for(kLong), std::future_status::ready);
  fake_cuda_go_on();
  by_program.get();
}

// ---- Pinned memory ----

struct Bound {
  std::size_t bytes;
  int node;
};
std::vector<Bound> bindings;
bool prefer_all(void*, std::size_t bytes, int node) {
  bindings.push_back({bytes, node});
  return true;
}
bool prefer_none(void*, std::size_t bytes, int node) {
  bindings.push_back({bytes, node});
  return false;
}

// A host with its nodes and the devices of the fake, as sysfs describes them.
class PinnedAllocations : public testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("FAKE_CUDA_DEVICES", "4", 1); }
  void SetUp() override {
    bindings.clear();
    driver_ = *Driver::open(FDL_FAKE_CUDA);
    sysfs_ = testing::TempDir() + "/sysfs-" + std::to_string(::getpid());
    describe_nodes("0-1");
    fake_cuda_numa_nodes(2);
  }
  void TearDown() override {
    fake_cuda_clear_failures();
    fake_cuda_numa_nodes(0);
    fake_cuda_driver_version(13000);
    fake_cuda_registers_at_address(1);
    std::filesystem::remove_all(sysfs_);
    EXPECT_EQ(fake_cuda_pinned_bytes(), 0u) << "pinned memory is lost";
  }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(sysfs_ + path).parent_path());
    std::ofstream(sysfs_ + path) << text << "\n";
  }
  void describe_nodes(const std::string& nodes) { write("/devices/system/node/has_memory", nodes); }

  // The nodes to which two allocations on the device are bound.
  std::vector<int> nodes_of(DeviceNumber number, PinnedMemory::Prefer prefer = prefer_all) {
    bindings.clear();
    Calls calls(*driver_, "cuda:" + std::to_string(number));
    EXPECT_EQ(driver_->cuDevicePrimaryCtxRetain(&calls.context, number), kSuccess);
    {
      const Scope scope(calls);
      PinnedMemory pinned(calls, sysfs_, prefer);
      pinned.begin(number);
      void* memory[2] = {};
      for (void*& each : memory) {
        EXPECT_EQ(pinned.allocate(5000, &each), kSuccess);
        std::memset(each, 1, 5000);
      }
      for (void* each : memory) pinned.free(each);
      EXPECT_EQ(fake_cuda_pinned_bytes(), 0u);
    }
    EXPECT_EQ(driver_->cuDevicePrimaryCtxRelease_v2(number), kSuccess);
    std::vector<int> nodes;
    for (const Bound& bound : bindings) {
      EXPECT_EQ(bound.bytes, 8192u) << "whole pages";
      nodes.push_back(bound.node);
    }
    return nodes;
  }

  const Driver* driver_ = nullptr;
  std::string sysfs_;
};

TEST_F(PinnedAllocations, LieOnTheNodeOfTheirDevice) {
  EXPECT_THAT(nodes_of(0), ElementsAre(0, 0));
  EXPECT_THAT(nodes_of(1), ElementsAre(1, 1));
  EXPECT_THAT(nodes_of(2), ElementsAre(0, 0));
}

TEST_F(PinnedAllocations, LieThereWithADriverThatDoesNotReportTheNode) {
  fake_cuda_driver_version(11080);
  write("/bus/pci/devices/0000:3a:00.0/numa_node", "1");
  write("/bus/pci/devices/0000:3b:00.0/numa_node", "-1");
  EXPECT_THAT(nodes_of(0), ElementsAre(1, 1));
  EXPECT_THAT(nodes_of(1), IsEmpty()) << "the system does not know the node";
  EXPECT_THAT(nodes_of(2), IsEmpty()) << "the system does not describe the device";
}

TEST_F(PinnedAllocations, AreOrdinaryOnAHostWithOneNode) {
  describe_nodes("0");
  EXPECT_THAT(nodes_of(1), IsEmpty());
  std::filesystem::remove_all(sysfs_);
  EXPECT_THAT(nodes_of(1), IsEmpty()) << "a system without NUMA";
}

TEST_F(PinnedAllocations, AreOrdinaryWhereTheDeviceUsesOtherAddressesForRegisteredMemory) {
  fake_cuda_registers_at_address(0);
  EXPECT_THAT(nodes_of(1), IsEmpty());
}

// As in a container without the right to choose nodes. It is tried once.
TEST_F(PinnedAllocations, AreOrdinaryWhereTheSystemDoesNotBind) {
  EXPECT_THAT(nodes_of(1, prefer_none), ElementsAre(1));
}

TEST_F(PinnedAllocations, AreOrdinaryWhereTheDriverDoesNotRegister) {
  fake_cuda_fail("cuMemHostRegister_v2", 1, kNotSupported);
  EXPECT_THAT(nodes_of(1), ElementsAre(1));
}

// ---- The system ----

TEST(NumaNodes, OfAPciDeviceAreFoundByItsBusIdInAnyFormat) {
  const std::string sysfs = testing::TempDir() + "/pci-" + std::to_string(::getpid());
  std::filesystem::create_directories(sysfs + "/bus/pci/devices/0001:3b:00.0");
  std::ofstream(sysfs + "/bus/pci/devices/0001:3b:00.0/numa_node") << "3\n";
  EXPECT_EQ(numa_node_of_pci_device(sysfs, "0001:3B:00.0"), 3);
  EXPECT_EQ(numa_node_of_pci_device(sysfs, "00000001:3B:00.0"), 3);
  EXPECT_EQ(numa_node_of_pci_device(sysfs, "0000:3B:00.0"), -1);
  std::filesystem::remove_all(sysfs);
}

// The kernel is asked which policy the pages have. A system that refuses mbind() says so.
TEST(NumaNodes, PagesPreferTheNode) {
  const auto bytes = static_cast<std::size_t>(4 * ::sysconf(_SC_PAGESIZE));
  void* const pages = std::aligned_alloc(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), bytes);
  EXPECT_FALSE(prefer_numa_node(pages, bytes, -1));
  EXPECT_FALSE(prefer_numa_node(pages, bytes, 1000)) << "there is no such node";
  if (prefer_numa_node(pages, bytes, 0)) {
    int mode = -1;
    unsigned long mask[16] = {};
    ASSERT_EQ(::syscall(SYS_get_mempolicy, &mode, mask, 8 * sizeof mask, pages, MPOL_F_ADDR), 0);
    EXPECT_EQ(mode, MPOL_PREFERRED);
    EXPECT_EQ(mask[0], 1u);
  } else {
    EXPECT_TRUE(errno == EPERM || errno == ENOSYS) << std::strerror(errno);
  }
  std::free(pages);
}

}  // namespace
}  // namespace fdl

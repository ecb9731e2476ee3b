// OneShot's blocks are ordinary memory of the driver: memory of its pools has no handles for other processes.
#include "cuda/one_shot.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/bytes.h"

namespace fdl::cuda {
namespace {

constexpr std::size_t kVector = 16;  // places of vectors are multiples of it

void* address_of(Pointer pointer) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer)); }
Pointer pointer_to(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

// Identifies this process among those of the host. Processes of several containers may have the same id.
uint64_t this_process() {
  static const uint64_t random = [] {
    std::random_device device;
    return static_cast<uint64_t>(device()) << 32 | device();
  }();
  return random + static_cast<uint64_t>(::getpid());
}

// Sixteen bytes for each thread, so that small vectors are one block.
uint32_t blocks_for(std::size_t bytes) {
  return static_cast<uint32_t>(std::clamp<std::size_t>(parts_of(bytes, kThreads * kVector), 1, kOneShotBlocks));
}

}  // namespace

OneShot::~OneShot() {
  const RelaxedScope scope(calls_);
  for (const auto& [bytes, block] : idle_) (void)calls_.driver.cuMemFree_v2(block);
}

Outcome OneShot::take(std::size_t bytes, Pointer& block) {
  {
    const MutexLock lock(mutex_);
    const auto idle = idle_.find(bytes);
    if (idle != idle_.end()) {
      block = idle->second;
      idle_.erase(idle);
      allocated_[address_of(block)] = bytes;
      return kSuccess;
    }
  }
  const Outcome outcome = calls_.driver.cuMemAlloc_v2(&block, bytes);
  if (outcome != kSuccess) return outcome;
  const MutexLock lock(mutex_);
  allocated_[address_of(block)] = bytes;
  return kSuccess;
}

// On a stream of its own, which waits for nothing.
Status OneShot::clear(Pointer block, std::size_t bytes) {
  void* stream = nullptr;
  FDL_RETURN_IF_ERROR(calls_.status(calls_.driver.cuStreamCreateWithPriority(&stream, kStreamNonBlocking, 0),
                                    "cuStreamCreateWithPriority"));
  Outcome outcome = calls_.driver.cuMemsetD8Async(block, 0, bytes, stream);
  if (outcome == kSuccess) outcome = calls_.driver.cuStreamSynchronize(stream);
  (void)calls_.driver.cuStreamDestroy_v2(stream);
  return calls_.status(outcome, "cuMemsetD8Async", "a shared block");
}

Result<void*> OneShot::allocate(std::size_t vector_bytes, Address& address) {
  FDL_RETURN_IF_ERROR(launches_.load());
  const RelaxedScope scope(calls_);
  FDL_RETURN_IF_ERROR(calls_.status(scope.outcome(), "cuCtxPushCurrent"));
  const std::size_t bytes = kOneShotHeader + 2 * round_up(vector_bytes, kVector);
  Pointer block = 0;
  FDL_RETURN_IF_ERROR(calls_.status(take(bytes, block), "cuMemAlloc", "a shared block"));
  IpcHandle handle{};
  Status shared = clear(block, bytes);
  if (shared.ok()) shared = calls_.status(calls_.driver.cuIpcGetMemHandle(&handle, block), "cuIpcGetMemHandle");
  if (!shared.ok()) {
    release(address_of(block));
    return shared;
  }
  address.process = this_process();
  address.memory = block;
  static_assert(sizeof handle == sizeof address.handle);
  std::memcpy(address.handle.data(), &handle, sizeof handle);
  return address_of(block);
}

void OneShot::release(void* block) {
  const MutexLock lock(mutex_);
  const auto found = allocated_.find(block);
  FDL_CHECK(found != allocated_.end());
  idle_.emplace(found->second, pointer_to(block));
  allocated_.erase(found);
}

// Memory of this process has one address for all devices.
Result<void*> OneShot::open_here(Pointer block) {
  int other = number_, can = 1;
  FDL_RETURN_IF_ERROR(calls_.status(calls_.driver.cuPointerGetAttribute(&other, kPointerDeviceOrdinal, block),
                                    "cuPointerGetAttribute", "a shared block"));
  if (other != number_) {
    FDL_RETURN_IF_ERROR(
        calls_.status(calls_.driver.cuDeviceCanAccessPeer(&can, number_, other), "cuDeviceCanAccessPeer"));
  }
  if (can == 0) {
    return Status(Code::unsupported, fmt::format("{} cannot access the memory of device {}", calls_.name, other));
  }
  FDL_RETURN_IF_ERROR(reaches_(address_of(block)));
  return address_of(block);
}

// The driver opens no handles of its own process.
Result<void*> OneShot::open(const Address& address) {
  const RelaxedScope scope(calls_);
  FDL_RETURN_IF_ERROR(calls_.status(scope.outcome(), "cuCtxPushCurrent"));
  if (address.process == this_process()) return open_here(address.memory);
  IpcHandle handle{};
  std::memcpy(&handle, address.handle.data(), sizeof handle);
  Pointer opened = 0;
  FDL_RETURN_IF_ERROR(calls_.status(calls_.driver.cuIpcOpenMemHandle_v2(&opened, handle, kIpcLazyEnablePeerAccess),
                                    "cuIpcOpenMemHandle"));
  const MutexLock lock(mutex_);
  ++opened_[address_of(opened)];
  return address_of(opened);
}

void OneShot::close(void* block) {
  {
    const MutexLock lock(mutex_);
    const auto found = opened_.find(block);
    if (found == opened_.end()) return;  // of this process
    if (--found->second == 0) opened_.erase(found);
  }
  const RelaxedScope scope(calls_);
  (void)calls_.driver.cuIpcCloseMemHandle(pointer_to(block));
}

Status OneShot::sum(void* stream, const Sum& sum) {
  FDL_CHECK(sum.blocks.size() <= kOneShotRanks && sum.count * size_of(sum.dtype) <= sum.vector_bytes);
  FDL_RETURN_IF_ERROR(calls_.failure());
  const Scope scope(calls_);
  FDL_RETURN_IF_ERROR(calls_.status(scope.outcome(), "cuCtxPushCurrent"));
  OneShotTable table{};
  table.input = static_cast<const std::byte*>(sum.input);
  table.output = static_cast<std::byte*>(sum.output);
  table.count = sum.count;
  table.scaling = scaling_of(sum.factor);
  table.place_bytes = round_up(sum.vector_bytes, kVector);
  table.stop = sum.stop;
  table.rank = static_cast<uint32_t>(sum.rank);
  table.ranks = static_cast<uint32_t>(sum.blocks.size());
  table.blocks = blocks_for(sum.count * size_of(sum.dtype));
  table.op = sum.op;
  for (std::size_t i = 0; i < sum.blocks.size(); ++i) table.shared[i] = static_cast<std::byte*>(sum.blocks[i]);
  FDL_RETURN_IF_ERROR(launches_.sum_one_shot(stream, sum.dtype, table));
  return last_work_.note(stream);
}

}  // namespace fdl::cuda

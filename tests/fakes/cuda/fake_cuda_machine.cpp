// Machine runs one thread per stream. The memory of each device is one address range that is closed to the CPU.
#include "tests/fakes/cuda/fake_cuda_machine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

namespace fake {
namespace {

using namespace fdl::cuda;

constexpr std::size_t kRange = std::size_t{32} << 30;
constexpr std::size_t kPage = 4096;
// Longer than any test holds a device, and shorter than the limit of a test.
constexpr std::chrono::seconds kMostWait{45};

long number_in(const char* variable, long otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == 0 ? otherwise : std::atol(text);
}

}  // namespace

Machine& Machine::get() {
  static Machine* const machine = new Machine;
  return *machine;
}

void Machine::read_environment() {
  delay_us = static_cast<unsigned>(number_in("FAKE_CUDA_DELAY_US", delay_us));
  memory_bytes = static_cast<std::size_t>(number_in("FAKE_CUDA_MEMORY", static_cast<long>(memory_bytes)));
  driver_version = static_cast<int>(number_in("FAKE_CUDA_DRIVER", driver_version));
  refused_module = static_cast<Outcome>(number_in("FAKE_CUDA_REFUSE_MODULE", refused_module));
  const char* failures = std::getenv("FAKE_CUDA_FAIL");
  std::istringstream plans(failures == nullptr ? "" : failures);
  for (std::string plan; std::getline(plans, plan, ',');) {
    char name[100] = "";
    int k = 0, code = 0;
    if (std::sscanf(plan.c_str(), "%99[^:]:%d:%d", name, &k, &code) == 3) plan_failure(name, k, code);
  }
  const long count = number_in("FAKE_CUDA_DEVICES", 1);
  for (int i = 0; i < count; ++i) {
    auto device = std::make_unique<Device>();
    device->index = i;
    if (number_in("FAKE_CUDA_IPC", 0) != 0) {
      device->file = ::memfd_create("fake_cuda", MFD_CLOEXEC);
      if (device->file < 0 || ::ftruncate(device->file, kRange) != 0) std::abort();
    }
    const int kind = device->file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void* range = ::mmap(nullptr, kRange, PROT_NONE, kind | MAP_NORESERVE, device->file, 0);
    if (range == MAP_FAILED) std::abort();
    device->base = static_cast<std::byte*>(range);
    device->default_stream = std::make_shared<Stream>();
    device->default_stream->device = device.get();
    device->default_stream->id = ++streams_made;
    devices.push_back(std::move(device));
  }
}

// ---- Calls and planned failures ----

Outcome Machine::enter(const char* function) {
  const std::size_t call = ++calls_[function];
  const auto [first, last] = plans_.equal_range(function);
  for (auto plan = first; plan != last; ++plan) {
    if (plan->second.at_call == call) return plan->second.code;
  }
  if (in_host_function) return kNotPermitted;
  return kSuccess;
}

void Machine::plan_failure(const std::string& function, int k, Outcome code) {
  plans_.insert({function, {calls_[function] + static_cast<std::size_t>(k), code}});
}

void Machine::clear_failures() { plans_.clear(); }

std::size_t Machine::calls(const std::string& function) const {
  const auto found = calls_.find(function);
  return found == calls_.end() ? 0 : found->second;
}

// ---- Memory ----

void Machine::protect(int protection) {
  for (const auto& device : devices) {
    if (device->top > 0 && ::mprotect(device->base, device->top, protection) != 0) std::abort();
  }
}

void Machine::open_memory() {
  const std::lock_guard lock(gate_);
  if (open_++ == 0) protect(PROT_READ | PROT_WRITE);
}

void Machine::close_memory() {
  const std::lock_guard lock(gate_);
  if (--open_ == 0) protect(PROT_NONE);
}

Outcome Machine::allocate(Device& device, std::size_t bytes, void** memory) {
  if (const Outcome refused = enter("device memory"); refused != kSuccess) return refused;
  if (bytes == 0) return kInvalidValue;
  // A page between allocations stays unused, so that no copy runs past the end of one into the next.
  const std::size_t pages = (bytes + kPage - 1) / kPage * kPage;
  if (device.used + bytes > memory_bytes || device.top + pages + kPage > kRange) return kOutOfMemory;
  const std::lock_guard gate(gate_);
  // The block that was freed last is used first, as the driver often does.
  const auto [first, last] = device.freed.equal_range(pages);
  const bool is_reused = first != last;
  std::byte* const start = is_reused ? std::prev(last)->second : device.base + device.top;
  if (is_reused) {
    device.freed.erase(std::prev(last));
  } else {
    device.top += pages + kPage;
  }
  device.used += bytes;
  device.live[start] = bytes;
  if (open_ > 0 && ::mprotect(start, pages + kPage, PROT_READ | PROT_WRITE) != 0) std::abort();
  *memory = start;
  return kSuccess;
}

Outcome Machine::free_memory(std::unique_lock<std::mutex>& lock, void* memory, const char* call) {
  Device* const device = owner_of(memory);
  if (device == nullptr || !device->live.contains(static_cast<std::byte*>(memory))) return kInvalidValue;
  wait_idle(lock, *device, call);
  return drop_memory(memory);
}

Outcome Machine::drop_memory(void* memory) {
  Device* const device = owner_of(memory);
  if (device == nullptr || !device->live.contains(static_cast<std::byte*>(memory))) return kInvalidValue;
  const auto found = device->live.find(static_cast<std::byte*>(memory));
  const std::size_t pages = (found->second + kPage - 1) / kPage * kPage;
  device->used -= found->second;
  device->live.erase(found);
  device->pooled.erase(static_cast<std::byte*>(memory));
  if (::madvise(memory, pages, device->file < 0 ? MADV_DONTNEED : MADV_REMOVE) != 0) std::abort();
  device->freed.insert({pages, static_cast<std::byte*>(memory)});
  return device->fallen;
}

Device* Machine::owner_of(const void* memory) {
  const auto* address = static_cast<const std::byte*>(memory);
  for (const auto& device : devices) {
    if (address >= device->base && address < device->base + kRange) return device.get();
  }
  return nullptr;
}

bool Machine::within_allocation(const void* memory, std::size_t bytes) {
  Device* const device = owner_of(memory);
  if (device == nullptr) return true;  // host memory
  auto* address = static_cast<std::byte*>(const_cast<void*>(memory));
  auto next = device->live.upper_bound(address);
  if (next == device->live.begin()) return false;
  --next;
  return address + bytes <= next->first + next->second;
}

// ---- Streams ----

Outcome Machine::queue(const std::shared_ptr<Stream>& stream, std::function<Outcome()> run, std::shared_ptr<Flag> done,
                       std::vector<std::shared_ptr<Flag>> after) {
  Device& device = *stream->device;
  if (device.fallen != 0) return device.fallen;
  if (stream->capture != nullptr) {
    if (stream->capture->invalid) return kCaptureInvalidated;
    stream->capture->operations.push_back(std::move(run));
    ++stream->captured[stream.get()];
    return kSuccess;
  }
  const auto follow = [&after](const Stream& other) {
    if (other.tail != nullptr && !other.tail->set) after.push_back(other.tail);
  };
  if (stream == device.default_stream) {
    for (const auto& [handle, other] : streams) {
      if (other->device == &device && other->blocking) follow(*other);
    }
  } else if (stream->blocking) {
    follow(*device.default_stream);
  }
  stream->tail = done;
  stream->queue.push_back({std::move(run), std::move(after), std::move(done)});
  start(stream);
  changed.notify_all();
  return kSuccess;
}

bool Machine::waits_for_capture(const Stream& stream) const {
  if (stream.device->default_stream.get() != &stream) return false;
  return std::any_of(streams.begin(), streams.end(), [&](const auto& each) {
    return each.second->blocking && each.second->device == stream.device && each.second->capture != nullptr;
  });
}

void Machine::start(const std::shared_ptr<Stream>& stream) {
  if (std::exchange(stream->started, true)) return;
  std::thread([this, stream] { run(stream); }).detach();
}

void Machine::run(std::shared_ptr<Stream> stream) {
  std::unique_lock lock(mutex);
  const auto may_run = [&] {
    if (stream->queue.empty()) return stream->closing;
    const auto& after = stream->queue.front().after;
    return !held && std::all_of(after.begin(), after.end(), [](const auto& flag) { return flag->set; });
  };
  for (;;) {
    changed.wait(lock, may_run);
    if (stream->queue.empty()) {
      ending.erase(stream);
      changed.notify_all();
      return;
    }
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->running = true;
    const unsigned delay = delay_us;
    lock.unlock();
    if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    lock.lock();
    if (stream->device->fallen == 0) {
      lock.unlock();
      const Outcome code = operation.run();
      lock.lock();
      if (code != kSuccess) fall(*stream->device, code);
      if (stream->device->fallen == 0) operation.done->set = true;
    }
    stream->running = false;
    changed.notify_all();
  }
}

void Machine::end(void* handle) {
  const auto found = streams.find(handle);
  const std::shared_ptr<Stream> stream = found->second;
  streams.erase(found);
  free_handles.push_back(handle);
  stream->closing = true;
  if (stream->started) ending.insert(stream);
  changed.notify_all();
}

void Machine::fall(Device& device, Outcome code) {
  device.fallen = code;
  device.default_stream->queue.clear();
  for (const auto& [handle, stream] : streams) {
    if (stream->device == &device) stream->queue.clear();
  }
  for (const auto& stream : ending) {
    if (stream->device == &device) stream->queue.clear();
  }
  changed.notify_all();
}

void Machine::wait_idle(std::unique_lock<std::mutex>& lock, Device& device, const char* call) {
  const bool is_idle = changed.wait_for(lock, kMostWait, [&] {
    if (device.fallen != 0) return true;
    const auto idle = [](const Stream& stream) { return stream.queue.empty() && !stream.running; };
    const bool ended = std::none_of(ending.begin(), ending.end(),
                                    [&](const auto& stream) { return stream->device == &device && !idle(*stream); });
    return ended && idle(*device.default_stream) && std::all_of(streams.begin(), streams.end(), [&](const auto& entry) {
             return entry.second->device != &device || idle(*entry.second);
           });
  });
  if (is_idle) return;
  std::fprintf(stderr, "fake libcuda: %s waits for device %d, which does not become idle; the driver would hang\n",
               call, device.index);
  std::abort();
}

}  // namespace fake

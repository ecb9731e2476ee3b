// Machine holds the devices, streams and memory of the fake libcuda.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cuda/driver_api.h"

namespace fake {

using fdl::cuda::Outcome;

// Whether an operation has run; guarded by the machine's mutex.
struct Flag {
  bool set = false;
};

struct Operation {
  std::function<Outcome()> run;
  std::vector<std::shared_ptr<Flag>> after{};
  std::shared_ptr<Flag> done = std::make_shared<Flag>();
};

struct Stream;

struct Capture {
  const Stream* origin = nullptr;  // where it began, and must end
  std::vector<std::function<Outcome()>> operations;
  bool invalid = false;
};

struct Device;

struct Stream {
  Device* device = nullptr;
  unsigned long long id = 0;
  bool blocking = true;  // waits for the default stream, which in turn waits for it
  bool started = false;
  bool running = false;
  bool closing = false;
  std::deque<Operation> queue{};
  std::shared_ptr<Flag> tail{};
  std::shared_ptr<Capture> capture{};
  // In a capture: how many operations of each of its streams precede what is captured here next.
  std::map<const Stream*, long> captured{};
};

struct Event {
  Device* device = nullptr;
  std::shared_ptr<Flag> recorded{};
  std::shared_ptr<Capture> capture{};
  std::map<const Stream*, long> captured{};  // of the stream, when the event was recorded
};

struct Device {
  int index = 0;
  int retained = 0;
  Outcome fallen = 0;
  std::size_t used = 0;
  std::byte* base = nullptr;  // the whole address range
  int file = -1;              // its pages, where other processes may open them
  std::size_t top = 0;
  std::multimap<std::size_t, std::byte*> freed{};  // blocks by their size, which the next of this size get
  std::map<std::byte*, std::size_t> live{};
  std::set<std::byte*> pooled{};  // of the driver's pool
  std::shared_ptr<Stream> default_stream{};
  std::set<int> peers{};
};

struct Kernel {
  const char* name;
  std::size_t parameter_bytes;
  void (*run)(const void* parameters, unsigned blocks, unsigned threads);
};
std::span<const Kernel> kernels();

class Machine {
 public:
  static Machine& get();  // intentionally leaked: threads of streams outlive main

  std::mutex mutex;  // guards everything here except open_
  std::condition_variable changed;
  bool initialized = false;
  bool held = false;
  unsigned delay_us = 0;
  std::size_t memory_bytes = std::size_t{8} << 30;
  bool has_pools = true;
  bool allocations_wait = false;
  int numa_nodes = 0;  // of the host: device i is near node i modulo this number; 0: the host has no NUMA
  bool registers_at_address = true;
  int capability = 90;
  int driver_version = 13000;
  Outcome refused_module = 0;
  std::vector<std::unique_ptr<Device>> devices;
  std::map<void*, std::shared_ptr<Stream>> streams;
  unsigned long long streams_made = 0;
  std::vector<void*> free_handles;  // of destroyed streams; the last one is used first, as the driver often does
  std::set<std::shared_ptr<Stream>> ending;  // destroyed streams with work that still runs
  std::map<void*, std::unique_ptr<Event>> events;
  std::map<std::byte*, std::size_t> pinned;
  std::set<std::byte*> registered;  // pinned memory of the caller
  std::size_t pinned_bytes = 0;
  std::set<std::shared_ptr<Capture>> captures;  // in progress
  std::shared_ptr<Capture> last_capture;

  void read_environment();
  // Counts a call. Returns the failure that was planned for it, else success.
  Outcome enter(const char* function);
  void plan_failure(const std::string& function, int k, Outcome code);
  void clear_failures();
  std::size_t calls(const std::string& function) const;

  // Call the following with the mutex held.
  Outcome allocate(Device& device, std::size_t bytes, void** memory);
  // Waits for the device, like the driver.
  Outcome free_memory(std::unique_lock<std::mutex>& lock, void* memory, const char* call);
  Outcome drop_memory(void* memory);  // without a wait
  Device* owner_of(const void* memory);
  bool within_allocation(const void* memory, std::size_t bytes);
  Outcome queue(const std::shared_ptr<Stream>& stream, std::function<Outcome()> run,
                std::shared_ptr<Flag> done = std::make_shared<Flag>(), std::vector<std::shared_ptr<Flag>> after = {});
  // Whether the stream is a default stream whose work would wait for a stream that is captured.
  bool waits_for_capture(const Stream& stream) const;
  void end(void* handle);
  void fall(Device& device, Outcome code);
  // For calls that wait for the device in the driver. A device that does not become idle, because its work waits for a
  // peer that waits for this call, would hang the program; here it ends with the call's name.
  void wait_idle(std::unique_lock<std::mutex>& lock, Device& device, const char* call);

  // Device memory is accessible to this process between these two calls. They nest, and any thread may call.
  void open_memory();
  void close_memory();

 private:
  struct Plan {
    std::size_t at_call;
    Outcome code;
  };

  void start(const std::shared_ptr<Stream>& stream);
  void run(std::shared_ptr<Stream> stream);
  void protect(int protection);

  std::map<std::string, std::size_t> calls_;
  std::multimap<std::string, Plan> plans_;
  std::mutex gate_;  // guards open_; may be locked while the mutex is held, but not the other way round
  int open_ = 0;
};

inline thread_local bool in_host_function = false;
inline std::atomic<std::size_t> narrow_segments{0};

// What cuModuleLoadData returns for the image, on a device of this compute capability.
Outcome check_image(const void* image, int capability, int driver_version);

}  // namespace fake

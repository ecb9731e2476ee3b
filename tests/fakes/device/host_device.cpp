// HostDevice guards everything that its threads share by one mutex. A stream's thread runs its queue in order.
#include "tests/fakes/device/host_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>

#include "tests/support/ranks.h"

namespace fdl::test {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr int kJunk = 0xdb;  // fresh memory is not zero

}  // namespace

class HostStream {
 public:
  explicit HostStream(HostDevice& device) : device_(device), thread_([this] { run(); }) {}
  ~HostStream() { thread_.join(); }

  // The device's mutex guards all members.
  void push(std::function<void()> work) {
    queue_.push_back(std::move(work));
    device_.changed_.notify_all();
  }
  void end() {
    ending_ = true;
    device_.changed_.notify_all();
  }
  bool idle() const { return queue_.empty() && !running_; }
  bool ended() const { return ending_; }

 private:
  void run() {
    for (;;) {
      std::function<void()> work;
      bool failed = false;
      {
        MutexLock lock(device_.mutex_);
        running_ = false;
        device_.changed_.notify_all();
        device_.changed_.wait(device_.mutex_, Deadline::never(), [this] { return ending_ || !queue_.empty(); });
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
        running_ = true;
      }
      device_.before_work();
      failed = device_.failed();
      if (!failed) work();
    }
  }

  HostDevice& device_;
  std::deque<std::function<void()>> queue_;
  bool running_ = false;
  bool ending_ = false;
  std::thread thread_;
};

HostDevice::HostDevice(Options options)
    : options_(options), name_("host:" + std::to_string(options.index) + " (memory)"), random_(options.seed) {
  const int file = ::memfd_create("host_device", MFD_CLOEXEC);
  FDL_CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(options_.memory_bytes)) == 0);
  const auto map = [&](int protection) {
    void* memory = ::mmap(nullptr, options_.memory_bytes, protection, MAP_SHARED, file, 0);
    FDL_CHECK(memory != MAP_FAILED);
    return static_cast<std::byte*>(memory);
  };
  addresses_ = map(PROT_NONE);
  bytes_ = map(PROT_READ | PROT_WRITE);
  ::close(file);
  MutexLock lock(mutex_);
  streams_.push_back(std::make_unique<HostStream>(*this));  // the default stream
}

HostDevice::~HostDevice() {
  resume();
  std::vector<std::unique_ptr<HostStream>> streams;
  {
    MutexLock lock(mutex_);
    for (const auto& stream : streams_) stream->end();
    streams.swap(streams_);
  }
  streams.clear();
  MutexLock lock(mutex_);
  for (const auto& [memory, bytes] : pinned_) std::free(const_cast<std::byte*>(memory));
  for (HostEvent* event : events_) delete event;
  ::munmap(addresses_, options_.memory_bytes);
  ::munmap(bytes_, options_.memory_bytes);
}

std::array<std::byte, 16> HostDevice::identity() const {
  std::array<std::byte, 16> identity{};
  identity[0] = static_cast<std::byte>(options_.index + 1);
  return identity;
}

// ---- Memory ----

bool HostDevice::is_device(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  return at >= addresses_ && at < addresses_ + options_.memory_bytes;
}

void* HostDevice::at(const void* address) const {
  auto* at = static_cast<std::byte*>(const_cast<void*>(address));
  return is_device(at) ? bytes_ + (at - addresses_) : at;
}

void HostDevice::check_address(const void* address, std::size_t bytes) {
  if (bytes == 0 || is_device(address)) return;
  const auto* at = static_cast<const std::byte*>(address);
  auto block = pinned_.upper_bound(at);
  FDL_CHECK(block != pinned_.begin());
  --block;
  FDL_CHECK(at + bytes <= block->first + block->second);  // otherwise the memory is foreign or was released
}

Result<void*> HostDevice::allocate(std::size_t bytes) {
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(begin(Call::allocate));
  const std::size_t size = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::size_t offset = 0;
  for (const auto& [start, length] : blocks_) {
    if (start - offset >= size) break;
    offset = start + length;
  }
  if (offset + size > options_.memory_bytes) {
    return Status(Code::resource, name_ + " has no " + std::to_string(bytes) + " bytes left");
  }
  blocks_[offset] = size;
  ++blocks_held_;
  std::memset(bytes_ + offset, kJunk, size);
  return static_cast<void*>(addresses_ + offset);
}

void HostDevice::release(void* memory) {
  if (memory == nullptr) return;
  MutexLock lock(mutex_);
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(memory) - addresses_);
  FDL_CHECK(blocks_.contains(offset));
  --blocks_held_;
  after_all([this, offset] {
    MutexLock again(mutex_);
    blocks_.erase(offset);
  });
}

void HostDevice::release_now(void* memory) {
  MutexLock lock(mutex_);
  --blocks_held_;
  FDL_CHECK(blocks_.erase(static_cast<std::size_t>(static_cast<std::byte*>(memory) - addresses_)) == 1);
}

Result<void*> HostDevice::allocate_pinned(std::size_t bytes) {
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(begin(Call::allocate_pinned));
  const std::size_t size = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  void* memory = std::aligned_alloc(kAlignment, size);
  FDL_CHECK(memory != nullptr);
  std::memset(memory, kJunk, size);
  pinned_[static_cast<std::byte*>(memory)] = bytes;
  return memory;
}

void HostDevice::release_pinned(void* memory) {
  if (memory == nullptr) return;
  MutexLock lock(mutex_);
  FDL_CHECK(pinned_.erase(static_cast<std::byte*>(memory)) == 1);
  after_all([memory] { std::free(memory); });
}

// The last owner of `token` runs `end`. The owners are works of streams that may still use the released memory. (A
// failed device drops its work, and so also drops the owners.)
void HostDevice::after_all(std::function<void()> end) {
  const std::shared_ptr<void> token(nullptr, [end = std::move(end)](void*) { end(); });
  bool busy = false;
  for (const auto& stream : streams_) {
    if (stream->idle()) continue;
    busy = true;
    stream->push([token] {});
  }
  if (busy) return;
  // No work owns it, and the mutex is held here. Another thread runs it, which takes the mutex itself.
  streams_.front()->push([token] {});
}

// ---- Streams and events ----

Result<Stream> HostDevice::make_stream() {
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(begin(Call::make_stream));
  streams_.push_back(std::make_unique<HostStream>(*this));
  Stream stream = streams_.back().get();
  live_streams_.insert(stream);
  return stream;
}

void HostDevice::end_stream(Stream stream) {
  if (stream == nullptr) return;
  MutexLock lock(mutex_);
  FDL_CHECK(live_streams_.erase(stream) == 1);
  static_cast<HostStream*>(stream)->end();
}

Result<bool> HostDevice::is_captured(Stream stream) {
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(begin(Call::captured));
  return captured_.contains(stream);
}

Result<DeviceEvent> HostDevice::make_event() {
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(begin(Call::make_event));
  auto* event = new HostEvent;
  events_.insert(event);
  return static_cast<DeviceEvent>(event);
}

void HostDevice::end_event(DeviceEvent event) {
  if (event == nullptr) return;
  MutexLock lock(mutex_);
  FDL_CHECK(events_.erase(static_cast<HostEvent*>(event)) == 1);
  delete static_cast<HostEvent*>(event);
}

Status HostDevice::set(DeviceEvent event, Stream stream) {
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(begin(Call::set));
  auto point = std::make_shared<Point>();
  static_cast<HostEvent*>(event)->point = point;
  return push(stream, [this, point] {
    MutexLock again(mutex_);
    point->passed = true;
    changed_.notify_all();
  });
}

Status HostDevice::wait(Stream stream, DeviceEvent event) {
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(begin(Call::wait));
  const auto point = static_cast<HostEvent*>(event)->point;
  if (point == nullptr) return {};
  return push(stream, [this, point] {
    MutexLock again(mutex_);
    changed_.wait(mutex_, Deadline::never(), [&] { return point->passed || !failure_.ok(); });
  });
}

Result<bool> HostDevice::reached(DeviceEvent event) {
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(begin(Call::reached));
  const auto& point = static_cast<HostEvent*>(event)->point;
  return point == nullptr || point->passed;
}

Status HostDevice::ring(Stream stream, const Event& notifier) {
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(begin(Call::ring));
  return push(stream, [&notifier] { notifier.ring(); });
}

// ---- Work ----

Status HostDevice::copy(Stream stream, void* target, const void* source, std::size_t bytes) {
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(begin(Call::copy));
  check_address(target, bytes);
  check_address(source, bytes);
  if (bytes == 0) return {};
  return push(stream, [to = at(target), from = at(source), bytes] { std::memmove(to, from, bytes); });
}

Status HostDevice::fill_zero(Stream stream, void* target, std::size_t bytes) {
  return enqueue(stream, [to = at(target), bytes] { std::memset(to, 0, bytes); });
}

Status HostDevice::pack(Stream stream, std::span<const DeviceSegment> segments, Dtype tensors, void* packed,
                        Dtype in_packed, double factor) {
  FDL_CHECK(tensors == in_packed);
  std::vector<DeviceSegment> kept(segments.begin(), segments.end());
  return enqueue(stream, [this, kept, tensors, packed, factor] {
    auto* to = static_cast<std::byte*>(at(packed));
    for (const DeviceSegment& segment : kept) {
      std::byte* start = to + segment.first * size_of(tensors);
      if (segment.tensor == nullptr) {
        std::memset(start, 0, segment.count * size_of(tensors));
      } else {
        scale(tensors, start, at(segment.tensor), segment.count, factor);
      }
    }
  });
}

Status HostDevice::unpack(Stream stream, std::span<const DeviceSegment> segments, Dtype tensors, const void* packed,
                          Dtype in_packed, double factor) {
  FDL_CHECK(tensors == in_packed);
  std::vector<DeviceSegment> kept(segments.begin(), segments.end());
  return enqueue(stream, [this, kept, tensors, packed, factor] {
    const auto* from = static_cast<const std::byte*>(at(packed));
    for (const DeviceSegment& segment : kept) {
      if (segment.tensor == nullptr) continue;
      scale(tensors, at(segment.tensor), from + segment.first * size_of(tensors), segment.count, factor);
    }
  });
}

Status HostDevice::reduce(Stream stream, Dtype dtype, Op op, void* target, std::span<const void* const> sources,
                          std::size_t count, double factor) {
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(begin(Call::reduce));
  if (op == Op::user) return Status(Code::unsupported, name_ + " cannot fold with a function of the user's");
  FDL_CHECK(is_device(target));
  std::vector<const void*> from;
  for (const void* source : sources) {
    FDL_CHECK(is_device(source));
    from.push_back(at(source));
  }
  return push(stream, [to = at(target), from, dtype, op, count, factor] {
    fdl::reduce_many(dtype, {op}, to, from, count);
    if (factor != 1) scale(dtype, to, to, count, factor);
  });
}

// ---- For tests ----

Status HostDevice::begin(Call call) {
  FDL_RETURN_IF_ERROR(failure_);
  const auto planned = planned_.find(call);
  if (planned == planned_.end() || --planned->second.nth > 0) return {};
  const Status why = planned->second.why;
  if (--planned->second.behind < 0) planned_.erase(planned);
  const bool asks =
      call == Call::allocate || call == Call::allocate_pinned || call == Call::make_stream || call == Call::make_event;
  return asks ? why : fail_device(why);
}

Status HostDevice::fail_device(const Status& why) {
  if (failure_.ok()) failure_ = why;
  changed_.notify_all();
  return failure_;
}

Status HostDevice::push(Stream stream, std::function<void()> work) {
  FDL_RETURN_IF_ERROR(failure_);
  HostStream* where = stream == nullptr ? streams_.front().get() : static_cast<HostStream*>(stream);
  FDL_CHECK(stream == nullptr || live_streams_.contains(stream));
  where->push(std::move(work));
  return {};
}

void HostDevice::before_work() {
  int delay_us = 0;
  {
    MutexLock lock(mutex_);
    if (options_.most_delay_us > 0 && random_() % 16 == 0) {
      delay_us = static_cast<int>(random_() % static_cast<uint64_t>(options_.most_delay_us + 1));
    }
    if (work_left_ > 0 && --work_left_ == 0) (void)fail_device(planned_failure_);
  }
  if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
}

Status HostDevice::enqueue(Stream stream, std::function<void()> work) {
  MutexLock lock(mutex_);
  return push(stream, std::move(work));
}

void HostDevice::fail_call(Call call, int nth, Status why, int behind) {
  MutexLock lock(mutex_);
  planned_[call] = {nth, std::move(why), behind};
}

void HostDevice::fail_work(int nth, Status why) {
  MutexLock lock(mutex_);
  work_left_ = nth;
  planned_failure_ = std::move(why);
}

void HostDevice::fail(const Status& why) {
  MutexLock lock(mutex_);
  (void)fail_device(why);
}

void HostDevice::pause(Stream stream) {
  MutexLock lock(mutex_);
  (void)push(stream, [this, paused_at = resumes_] {
    MutexLock again(mutex_);
    changed_.wait(mutex_, Deadline::never(), [&] { return resumes_ > paused_at || !failure_.ok(); });
  });
}

void HostDevice::resume() {
  MutexLock lock(mutex_);
  ++resumes_;
  changed_.notify_all();
}

void HostDevice::capture(Stream stream, bool on) {
  MutexLock lock(mutex_);
  if (on) {
    captured_.insert(stream);
  } else {
    captured_.erase(stream);
  }
}

Status HostDevice::synchronize(Stream stream) {
  const auto passed = std::make_shared<Point>();
  MutexLock lock(mutex_);
  FDL_RETURN_IF_ERROR(push(stream, [this, passed] {
    MutexLock again(mutex_);
    passed->passed = true;
    changed_.notify_all();
  }));
  changed_.wait(mutex_, Deadline::never(), [&] { return passed->passed || !failure_.ok(); });
  return failure_;
}

void HostDevice::upload(Stream stream, void* target, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  require(enqueue(stream, [to = at(target), source, bytes] { std::memcpy(to, source, bytes); }));
  require(synchronize(stream));
}

void HostDevice::download(Stream stream, void* target, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  require(enqueue(stream, [from = at(source), target, bytes] { std::memcpy(target, from, bytes); }));
  require(synchronize(stream));
}

bool HostDevice::failed() const {
  MutexLock lock(mutex_);
  return !failure_.ok();
}

std::string HostDevice::left_over() const {
  MutexLock lock(mutex_);
  std::string text;
  const auto report = [&](std::size_t count, const char* what) {
    if (count > 0) text += std::to_string(count) + what;
  };
  report(blocks_held_, " blocks of the device's memory ");
  report(pinned_.size(), " blocks of pinned memory ");
  report(live_streams_.size(), " streams ");
  report(events_.size(), " events ");
  return text;
}

std::size_t HostDevice::pinned_bytes() const {
  MutexLock lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [memory, size] : pinned_) bytes += size;
  return bytes;
}

int HostDevice::most_streams() const {
  MutexLock lock(mutex_);
  return static_cast<int>(streams_.size()) - 1;
}

}  // namespace fdl::test

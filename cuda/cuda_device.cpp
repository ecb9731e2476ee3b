// CudaDevice implements Device: each call enters the device's context, makes one or two driver calls, and leaves it
// again.
#include "cuda/cuda_device.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cuda/calls.h"
#include "cuda/events.h"
#include "cuda/launches.h"
#include "cuda/memory_cache.h"
#include "cuda/one_shot.h"
#include "cuda/pinned_memory.h"
#include "cuda/pool_memory.h"

namespace fdl {
namespace {

using namespace cuda;

// Memory that a device keeps for reuse.
constexpr std::size_t kMostIdleDeviceBytes = std::size_t{256} << 20;
constexpr std::size_t kMostIdlePinnedBytes = std::size_t{128} << 20;

Pointer pointer(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

// Enters the device unless it has failed. `scope` lasts until the end of the function.
#define FDL_ENTER_AS(Kind, scope)        \
  FDL_RETURN_IF_ERROR(calls_.failure()); \
  const Kind scope(calls_);              \
  FDL_RETURN_IF_ERROR(calls_.status(scope.outcome(), "cuCtxPushCurrent"))
#define FDL_ENTER(scope) FDL_ENTER_AS(Scope, scope)
#define FDL_ENTER_RELAXED(scope) FDL_ENTER_AS(RelaxedScope, scope)

// Keeps the primary context of a device alive, which frameworks use, too.
class PrimaryContext {
 public:
  PrimaryContext() = default;
  ~PrimaryContext() {
    if (calls_ != nullptr) (void)calls_->driver.cuDevicePrimaryCtxRelease_v2(number_);
  }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  // Retains the context and returns it. Call once.
  Result<Context> retain(Calls& calls, DeviceNumber number) {
    Context context = nullptr;
    FDL_RETURN_IF_ERROR(
        calls.status(calls.driver.cuDevicePrimaryCtxRetain(&context, number), "cuDevicePrimaryCtxRetain"));
    calls_ = &calls;
    number_ = number;
    return context;
  }

 private:
  const Calls* calls_ = nullptr;
  DeviceNumber number_ = -1;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(const Driver& driver, int index, int count, std::string name, const std::string& sysfs)
      : driver_(driver), index_(index), count_(count), calls_(driver, std::move(name)), host_memory_(calls_, sysfs) {}

  // Retains the primary context. Call once, before anything else.
  Status begin();

  std::string_view name() const override { return calls_.name; }
  int kind() const override { return 2; }  // kDLCUDA
  int index() const override { return index_; }
  std::array<std::byte, 16> identity() const override { return identity_; }

  Status enter(Entered& entered) override {
    Scope::Entered here;
    const Outcome outcome = Scope::enter(calls_, here);
    entered = {here.outer, here.pushed};
    return calls_.status(outcome, "cuCtxPushCurrent");
  }
  void leave(const Entered& entered) override {
    Scope::leave(calls_, {static_cast<Context>(entered.outer), entered.changed});
  }

  Result<void*> allocate(std::size_t bytes) override;
  void release(void* memory) override { give(device_memory_, memory); }
  void release_after(Stream stream, void* memory) override;
  Status note_work(Stream stream) override {
    FDL_ENTER(scope);
    return queued(stream);
  }
  Result<void*> allocate_pinned(std::size_t bytes) override;
  void release_pinned(void* memory) override { give(pinned_memory_, memory); }
  Status reserve_pinned(std::size_t bytes, int count) override {
    FDL_ENTER_RELAXED(scope);
    return calls_.status(pinned_memory_.reserve(bytes, count), "cuMemHostAlloc");
  }

  Result<Stream> make_stream() override;
  void end_stream(Stream stream) override;
  Result<bool> is_captured(Stream stream) override;
  uint64_t stream_id(Stream stream) override {
    const Scope scope(calls_);
    return scope.outcome() == kSuccess ? calls_.stream_id(stream) : 0;
  }
  Result<DeviceEvent> make_event() override;
  void end_event(DeviceEvent event) override;
  Status set(DeviceEvent event, Stream stream) override;
  Status wait(Stream stream, DeviceEvent event) override;
  Result<bool> reached(DeviceEvent event) override;
  Status ring(Stream stream, const Event& notifier) override;

  Status copy(Stream stream, void* target, const void* source, std::size_t bytes) override;
  Status fill_zero(Stream stream, void* target, std::size_t bytes) override;
  Status pack(Stream stream, std::span<const DeviceSegment> segments, Dtype tensors, void* packed, Dtype in_packed,
              double factor) override {
    return move_segments(stream, {segments, tensors, static_cast<std::byte*>(packed), in_packed, false, factor});
  }
  Status unpack(Stream stream, std::span<const DeviceSegment> segments, Dtype tensors, const void* packed,
                Dtype in_packed, double factor) override {
    auto* const from = const_cast<std::byte*>(static_cast<const std::byte*>(packed));
    return move_segments(stream, {segments, tensors, from, in_packed, true, factor});
  }
  Status reduce(Stream stream, Dtype dtype, Op op, void* target, std::span<const void* const> sources,
                std::size_t count, double factor) override;
  OneShotSums* one_shot_sums() override { return &one_shot_; }

 private:
  // Allocates from a cache. Out of memory, the error has the free and total bytes of the device.
  Result<void*> take(MemoryCache& cache, std::size_t bytes, std::string_view call);
  // Returns memory to a cache, which reuses it after all work queued so far.
  void give(MemoryCache& cache, void* memory);
  // Copies without noting the work in last_work_.
  Status copy_within(Stream stream, void* target, const void* source, std::size_t bytes);
  Status enable_peer_of(const void* memory);
  Status move_segments(Stream stream, const Packing& packing);
  // Packs or unpacks by one driver call for each segment.
  Status copy_segments(Stream stream, const Packing& packing);
  // Must end every function that queues work on memory, so that released memory waits for that work.
  Status queued(Stream stream) { return last_work_.note(stream); }

  const Driver& driver_;
  // Number of this device, and of all devices that are visible to the process.
  const int index_, count_;
  Calls calls_;
  DeviceNumber number_ = -1;
  PrimaryContext context_;  // the members below need it, so it is destroyed after them
  Mutex peer_mutex_;
  std::vector<std::unique_ptr<PrimaryContext>> peer_contexts_ FDL_GUARDED_BY(peer_mutex_);
  std::array<std::byte, 16> identity_{};
  std::atomic<uint64_t> peers_{
      0};  // one bit per device (modulo 64) for which peer access was enabled or found impossible
  LastWork last_work_{calls_};
  Launches launches_{calls_, kernel_image()};
  OneShot one_shot_{calls_, launches_, last_work_};
  PoolMemory pool_memory_{calls_};
  MemoryCache device_memory_{[this](std::size_t bytes, void** memory) { return pool_memory_.allocate(bytes, memory); },
                             [this](void* memory) {
                               const RelaxedScope scope(calls_);
                               pool_memory_.free(memory);
                             },
                             kMostIdleDeviceBytes, [this](void* memory) { return pool_memory_.frees_at_once(memory); }};
  PinnedMemory host_memory_;
  MemoryCache pinned_memory_{[this](std::size_t bytes, void** memory) { return host_memory_.allocate(bytes, memory); },
                             [this](void* memory) {
                               const RelaxedScope scope(calls_);
                               host_memory_.free(memory);
                             },
                             kMostIdlePinnedBytes, [](void*) { return false; }};
};

Status CudaDevice::begin() {
  FDL_RETURN_IF_ERROR(calls_.status(driver_.cuDeviceGet(&number_, index_), "cuDeviceGet"));
  Uuid uuid{};
  FDL_RETURN_IF_ERROR(calls_.status(driver_.cuDeviceGetUuid_v2(&uuid, number_), "cuDeviceGetUuid"));
  std::memcpy(identity_.data(), uuid.bytes, identity_.size());
  FDL_ASSIGN_OR_RETURN(calls_.context, context_.retain(calls_, number_));
  // Now rather than at the first launch: loading waits for the device, on which another group's kernels may by then
  // wait for a peer. The first launch reports a failure.
  const Scope scope(calls_);
  (void)launches_.load();
  pool_memory_.begin(number_);
  host_memory_.begin(number_);
  one_shot_.begin(number_, [this](const void* memory) { return enable_peer_of(memory); });
  return ok_status();
}

// ---- Memory ----

// The error of an exhausted device has the numbers that explain it.
Result<void*> CudaDevice::take(MemoryCache& cache, std::size_t bytes, std::string_view call) {
  FDL_ENTER_RELAXED(scope);
  void* memory = nullptr;
  const Outcome outcome = cache.take(bytes, &memory);
  if (outcome == kSuccess) return memory;
  std::size_t free = 0, total = 0;
  if (outcome != kOutOfMemory || driver_.cuMemGetInfo_v2(&free, &total) != kSuccess) {
    return calls_.status(outcome, call, fmt::format("{} bytes", bytes));
  }
  return calls_.status(outcome, call,
                       fmt::format("{} bytes, where {} of the device's {} are free", bytes, free, total));
}

Result<void*> CudaDevice::allocate(std::size_t bytes) { return take(device_memory_, bytes, "cuMemAlloc"); }
Result<void*> CudaDevice::allocate_pinned(std::size_t bytes) { return take(pinned_memory_, bytes, "cuMemHostAlloc"); }

void CudaDevice::give(MemoryCache& cache, void* memory) {
  if (memory == nullptr) return;
  const RelaxedScope scope(calls_);
  cache.give(memory, last_work_.pending());
}

void CudaDevice::release_after(Stream stream, void* memory) {
  {
    const RelaxedScope scope(calls_);
    if (calls_.failure().ok()) (void)last_work_.note(stream);  // a failed device no longer uses the memory
  }
  release(memory);
}

// ---- Streams and events ----

Result<Stream> CudaDevice::make_stream() {
  FDL_ENTER_RELAXED(scope);
  // The highest priority, so that communication is not queued behind the computation that overlaps with it.
  int least = 0, greatest = 0;
  FDL_RETURN_IF_ERROR(
      calls_.status(driver_.cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange"));
  Stream stream = nullptr;
  FDL_RETURN_IF_ERROR(calls_.status(driver_.cuStreamCreateWithPriority(&stream, kStreamNonBlocking, greatest),
                                    "cuStreamCreateWithPriority"));
  last_work_.own(stream);
  return stream;
}

void CudaDevice::end_stream(Stream stream) {
  if (stream == nullptr) return;
  const RelaxedScope scope(calls_);
  // This event also covers work that was queued on the stream without this device's functions.
  if (calls_.failure().ok()) (void)last_work_.note(stream);
  last_work_.forget(stream);
  (void)driver_.cuStreamDestroy_v2(stream);
}

Result<bool> CudaDevice::is_captured(Stream stream) {
  FDL_ENTER(scope);
  int captured = kCaptureNone;
  const Outcome outcome = driver_.cuStreamIsCapturing(stream, &captured);
  // The default stream would have to wait for a captured one: nothing can be queued on it before that capture ends.
  if (outcome == kCaptureImplicit) return true;
  FDL_RETURN_IF_ERROR(calls_.status(outcome, "cuStreamIsCapturing"));
  return captured != kCaptureNone;
}

Result<DeviceEvent> CudaDevice::make_event() {
  FDL_ENTER_RELAXED(scope);
  return fdl::cuda::make_event(calls_);
}

void CudaDevice::end_event(DeviceEvent event) {
  if (event == nullptr) return;
  const RelaxedScope scope(calls_);
  (void)driver_.cuEventDestroy_v2(event);
}

Status CudaDevice::set(DeviceEvent event, Stream stream) {
  FDL_ENTER(scope);
  return calls_.status(driver_.cuEventRecord(event, stream), "cuEventRecord");
}

Status CudaDevice::wait(Stream stream, DeviceEvent event) {
  FDL_ENTER(scope);
  return calls_.status(driver_.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

Result<bool> CudaDevice::reached(DeviceEvent event) {
  FDL_ENTER_RELAXED(scope);
  const Outcome outcome = driver_.cuEventQuery(event);
  if (outcome == kNotReady) return false;
  FDL_RETURN_IF_ERROR(calls_.status(outcome, "cuEventQuery"));
  return true;
}

Status CudaDevice::ring(Stream stream, const Event& notifier) {
  FDL_ENTER(scope);
  // Runs on a thread of the driver, which must not call CUDA. It is not called if the device has failed.
  const HostFunction ring_it = [](void* event) { static_cast<const Event*>(event)->ring(); };
  return calls_.status(driver_.cuLaunchHostFunc(stream, ring_it, const_cast<Event*>(&notifier)), "cuLaunchHostFunc");
}

// ---- Work ----

// Direct copies between devices must be enabled once per pair. Does nothing for memory of this device or of the host.
Status CudaDevice::enable_peer_of(const void* memory) {
  unsigned type = 0;
  int other = index_;
  if (driver_.cuPointerGetAttribute(&type, kPointerMemoryType, pointer(memory)) != kSuccess || type != kMemoryDevice ||
      driver_.cuPointerGetAttribute(&other, kPointerDeviceOrdinal, pointer(memory)) != kSuccess || other == number_) {
    return ok_status();
  }
  // Only the first caller enables access. Copies work without it, too, only more slowly.
  const uint64_t bit = uint64_t{1} << (other & 63);
  if (peers_.fetch_or(bit) & bit) return ok_status();
  const RelaxedScope scope(calls_);
  int can = 0;
  FDL_RETURN_IF_ERROR(calls_.status(driver_.cuDeviceCanAccessPeer(&can, number_, other), "cuDeviceCanAccessPeer"));
  if (can == 0) return ok_status();  // the driver copies through the host
  // The peer's context must exist as long as it is accessed.
  auto peer = std::make_unique<PrimaryContext>();
  FDL_ASSIGN_OR_RETURN(const Context context, peer->retain(calls_, other));
  const Outcome outcome = driver_.cuCtxEnablePeerAccess(context, 0);
  if (outcome != kSuccess && outcome != kPeerAccessAlreadyEnabled) {
    return calls_.status(outcome, "cuCtxEnablePeerAccess");
  }
  const MutexLock lock(peer_mutex_);
  peer_contexts_.push_back(std::move(peer));
  return ok_status();
}

Status CudaDevice::copy_within(Stream stream, void* target, const void* source, std::size_t bytes) {
  if (count_ > 1) {
    FDL_RETURN_IF_ERROR(enable_peer_of(target));
    FDL_RETURN_IF_ERROR(enable_peer_of(source));
  }
  return calls_.status(driver_.cuMemcpyAsync(pointer(target), pointer(source), bytes, stream), "cuMemcpyAsync");
}

Status CudaDevice::copy(Stream stream, void* target, const void* source, std::size_t bytes) {
  if (bytes == 0 || target == source) return ok_status();
  FDL_ENTER(scope);
  FDL_RETURN_IF_ERROR(copy_within(stream, target, source, bytes));
  return queued(stream);
}

Status CudaDevice::fill_zero(Stream stream, void* target, std::size_t bytes) {
  if (bytes == 0) return ok_status();
  FDL_ENTER(scope);
  FDL_RETURN_IF_ERROR(calls_.status(driver_.cuMemsetD8Async(pointer(target), 0, bytes, stream), "cuMemsetD8Async"));
  return queued(stream);
}

Status CudaDevice::copy_segments(Stream stream, const Packing& packing) {
  const std::size_t size = size_of(packing.tensors);
  for (const DeviceSegment& segment : packing.segments) {
    // Unpacking skips missing tensors; packing fills their place with zeros.
    if (segment.count == 0 || (packing.unpacks && segment.tensor == nullptr)) continue;
    void* const packed = packing.packed + segment.first * size;
    const std::size_t bytes = segment.count * size;
    if (segment.tensor == nullptr) {
      FDL_RETURN_IF_ERROR(calls_.status(driver_.cuMemsetD8Async(pointer(packed), 0, bytes, stream), "cuMemsetD8Async"));
    } else if (packing.unpacks) {
      FDL_RETURN_IF_ERROR(copy_within(stream, segment.tensor, packed, bytes));
    } else {
      FDL_RETURN_IF_ERROR(copy_within(stream, packed, segment.tensor, bytes));
    }
  }
  return ok_status();
}

Status CudaDevice::move_segments(Stream stream, const Packing& packing) {
  // Only conversions between real types are supported; other packings keep their type.
  if (packing.tensors != packing.in_packed && !(is_real(packing.tensors) && is_real(packing.in_packed))) {
    return Status(Code::unsupported, fmt::format("{}: {} is not packed as {}: only real types become others",
                                                 calls_.name, name_of(packing.tensors), name_of(packing.in_packed)));
  }
  FDL_ENTER(scope);
  // A single tensor is copied by the driver, and so are many if there are no kernels.
  if (packing.is_copy() && (packing.segments.size() <= 1 || !launches_.load().ok())) {
    FDL_RETURN_IF_ERROR(copy_segments(stream, packing));
  } else {
    FDL_RETURN_IF_ERROR(launches_.pack(stream, packing));
  }
  return queued(stream);
}

Status CudaDevice::reduce(Stream stream, Dtype dtype, Op op, void* target, std::span<const void* const> sources,
                          std::size_t count, double factor) {
  FDL_CHECK(!sources.empty());
  if (op == Op::user || !supports(dtype, op)) {
    return Status(Code::unsupported,
                  fmt::format("{}: there is no {} of {} on devices", calls_.name, name_of(op), name_of(dtype)));
  }
  if (sources.size() > kMostSources) {
    return Status(Code::unsupported, fmt::format("{}: {} of {} vectors at once; {} is the most", calls_.name,
                                                 name_of(op), sources.size(), kMostSources));
  }
  if (count == 0) return ok_status();
  // A single unscaled source is a copy; scaling does not change bools.
  if (sources.size() == 1 && (factor == 1.0 || kind_of(dtype) == DtypeKind::logical)) {
    return copy(stream, target, sources[0], count * size_of(dtype));
  }
  FDL_ENTER(scope);
  FDL_RETURN_IF_ERROR(launches_.reduce(stream, dtype, op, target, sources, count, factor));
  return queued(stream);
}

// ---- Opening ----

Result<std::shared_ptr<Device>> open_now(const Driver& driver, int index, const std::string& sysfs) {
  int count = 0;
  Calls calls(driver, "cuda");
  FDL_RETURN_IF_ERROR(calls.status(driver.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  if (index < 0 || index >= count) {
    return Status(Code::invalid_argument,
                  fmt::format("cuda:{}: there is no such device: {} are visible to this process (CUDA_VISIBLE_DEVICES)",
                              index, count));
  }
  DeviceNumber number = -1;
  char name[128] = "";
  FDL_RETURN_IF_ERROR(calls.status(driver.cuDeviceGet(&number, index), "cuDeviceGet"));
  FDL_RETURN_IF_ERROR(calls.status(driver.cuDeviceGetName(name, sizeof name, number), "cuDeviceGetName"));
  auto device = std::make_shared<CudaDevice>(driver, index, count, fmt::format("cuda:{} ({})", index, name), sysfs);
  FDL_RETURN_IF_ERROR(device->begin());
  return std::shared_ptr<Device>(std::move(device));
}

}  // namespace

Result<int> count_cuda_devices(const Config& config) {
  FDL_ASSIGN_OR_RETURN(const Driver* const driver, Driver::open(config.cuda_library));
  int count = 0;
  Calls calls(*driver, "cuda");
  FDL_RETURN_IF_ERROR(calls.status(driver->cuDeviceGetCount(&count), "cuDeviceGetCount"));
  return count;
}

Result<std::shared_ptr<Device>> open_cuda_device(int index, const Config& config) {
  FDL_ASSIGN_OR_RETURN(const Driver* const driver, Driver::open(config.cuda_library));
  static Mutex mutex;
  // Intentionally leaked. The entries are weak, so a device ends with its last user and can be opened again.
  static auto* const opened = new std::map<std::pair<const Driver*, int>, std::weak_ptr<Device>>;
  const MutexLock lock(mutex);
  std::weak_ptr<Device>& known = (*opened)[{driver, index}];
  if (std::shared_ptr<Device> device = known.lock()) return device;
  FDL_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, open_now(*driver, index, config.sysfs_root));
  known = device;
  return device;
}

}  // namespace fdl

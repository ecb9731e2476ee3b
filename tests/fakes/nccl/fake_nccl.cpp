// This file implements the fake libnccl: NCCL's C interface on the fake libcuda. Collectives are sends and receives.
#include "tests/fakes/nccl/fake_nccl.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/half.h"
#include "data/reduce.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/nccl/fake_nccl_rendezvous.h"
#include "transports/nccl/nccl_abi.h"

extern "C" {
int cuCtxGetDevice(int* device);
int cuCtxSynchronize(void);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuDeviceGetUuid_v2(char* uuid, int device);
int cuStreamIsCapturing(void* stream, int* status);
}

namespace {

using fdl::nccl::Outcome;
using fdl::nccl::RedOp;
using fdl::nccl::Type;
using namespace std::chrono_literals;

[[noreturn]] void misuse(const std::string& what) {
  std::fprintf(stderr, "fake libnccl: %s\n", what.c_str());
  std::abort();
}

// ---- Settings and counts of tests ----

struct Plan {
  long at_call;
  int code;
};

struct Settings {
  std::mutex mutex;
  std::map<std::string, long> values;
  std::map<std::string, long> calls;
  std::multimap<std::string, Plan> plans;
  std::map<std::string, long> counts;
  long groups = 0;  // run by this process

  Settings() { reset(); }
  void reset() {
    const auto number = [](const char* name, long standard) {
      const char* text = std::getenv(name);
      return text == nullptr ? standard : std::atol(text);
    };
    values = {
        {"version", number("FAKE_NCCL_VERSION", 23203)}, {"defer_us", number("FAKE_NCCL_DEFER_US", 0)},
        {"delay_us", number("FAKE_NCCL_DELAY_US", 0)},   {"hang_at_start", number("FAKE_NCCL_HANG_AT_START", 0)},
        {"error_at", number("FAKE_NCCL_ERROR_AT", 0)},   {"multi_rank_gpu", number("NCCL_MULTI_RANK_GPU_ENABLE", 0)},
        {"windows", number("NCCL_WIN_ENABLE", 1)},       {"kernels", number("FAKE_NCCL_KERNELS", 0)},
        {"connects", number("FAKE_NCCL_CONNECTS", 0)},   {"memory_waits", 0}};
    calls.clear();
    plans.clear();
    groups = 0;
    std::string text = std::getenv("FAKE_NCCL_FAIL") == nullptr ? "" : std::getenv("FAKE_NCCL_FAIL");
    char name[64];
    int k = 0;
    int code = 0;
    if (std::sscanf(text.c_str(), "%63[^:]:%d:%d", name, &k, &code) == 3) plans.insert({name, {k, code}});
  }
};

Settings& settings() {
  static Settings* made = new Settings;
  return *made;
}

long setting(const char* what) {
  std::lock_guard lock(settings().mutex);
  return settings().values[what];
}

void count(const char* what, long change) {
  std::lock_guard lock(settings().mutex);
  settings().counts[what] += change;
}

thread_local std::string last_error;

// Counts the call. Returns success or a planned failure. Ends the process if the version has no such function.
Outcome enter(const char* function, long since = 0) {
  std::lock_guard lock(settings().mutex);
  if (settings().values["version"] < since) misuse(std::string("this version has no nccl") + function);
  const long call = ++settings().calls[function];
  const auto [first, last] = settings().plans.equal_range(function);
  for (auto plan = first; plan != last; ++plan) {
    if (plan->second.at_call != call) continue;
    last_error = std::string("fake: nccl") + function + " was to fail";
    return static_cast<Outcome>(plan->second.code);
  }
  return Outcome::success;
}

#define ENTER(...) \
  if (const Outcome planned = enter(__VA_ARGS__); planned != Outcome::success) return planned

Outcome refuse(Outcome outcome, const std::string& why) {
  last_error = "fake: " + why;
  return outcome;
}

// ---- Communicators ----

struct Call {
  const char* name;
  uint32_t kind;
  const void* source;
  void* target;
  std::size_t count;
  Type type;
  RedOp op;
  int peer;
  void* stream;
  double factor = 1;  // copied at the call: the operation may be gone when the work runs
};

struct Core;

// One group of calls, before and on its stream. It is never freed, because graphs may run it again.
struct Work {
  Core* core;
  std::vector<Call> calls;
  long turn = -1;    // its number among the works that were queued; -1: in a graph
  long launch = -1;  // its number among those of all communicators of the device
};

// The room of a device for kernels of NCCL, which is given in the order of the launches.
class Room {
 public:
  static Room& of(int device) {
    static auto* rooms = new std::map<int, Room>;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    return (*rooms)[device];
  }
  long launch() {
    const std::lock_guard lock(mutex_);
    launched_.insert(++last_);
    return last_;
  }
  // Waits until fewer than `most` kernels that were launched before have not ended. 0: without a limit.
  void enter(long number, long most, const std::function<bool()>& stopped) {
    std::unique_lock lock(mutex_);
    const auto has_room = [&] { return std::distance(launched_.begin(), launched_.find(number)) < most; };
    while (most > 0 && !has_room() && !stopped()) changed_.wait_for(lock, 20ms);  // a stop is noticed within this time
  }
  void leave(long number) {
    const std::lock_guard lock(mutex_);
    launched_.erase(number);
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<long> launched_;
  long last_ = 0;
};

struct Core {
  std::shared_ptr<fake::Rendezvous> rendezvous;
  int rank = 0;
  int size = 0;
  int device = 0;
  bool blocking = true;
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> stopped{false};
  bool shares = false;       // communicators that are split off share its flag for aborts
  Core* parent = nullptr;    // with which this one shares it
  std::set<uint32_t> kinds;  // of collectives for which it has connected
  bool revoked = false;
  Outcome async = Outcome::success;
  std::string words;
  bool joined = false;
  bool finalizing = false;
  int windows = 0;
  std::map<fdl::nccl::Window*, void*>
      promised_windows;                     // of nonblocking calls: written when all ranks have registered theirs
  std::deque<std::unique_ptr<Work>> works;  // never freed
  std::deque<Work*> deferred;
  std::chrono::steady_clock::time_point due{};
  long queued = 0;
  long turn = 0;
  int running = 0;
  int splits = 0;
  std::map<int, std::pair<Type, double>> factors;
  int next_operation = 5;
  std::map<std::size_t, const void*> registered;  // by handle
  std::size_t next_handle = 1;
  std::map<const std::byte*, std::pair<int, std::size_t>> window_memory;  // number of the window, and its bytes

  // A hash of the place of an address in its window, equal for ranks with the same place; 0 outside of windows.
  uint32_t place_of(const void* memory) {
    const auto* address = static_cast<const std::byte*>(memory);
    const std::lock_guard lock(mutex);
    for (const auto& [begin, window] : window_memory) {
      if (address < begin || address >= begin + window.second) continue;
      return static_cast<uint32_t>(window.first * 40503 + (address - begin) * 31 + 1);
    }
    return 0;
  }
};

struct Cores {
  std::mutex mutex;
  std::vector<Core*> all;  // never freed: streams and graphs may refer to them
};

Cores& cores() {
  static Cores* made = new Cores;
  return *made;
}

// NCCL saves the current device and restores it. Where there is none, that is device 0, on which every rank of the host
// would then leave a context.
int current_device(const char* function) {
  int device = 0;
  if (cuCtxGetDevice(&device) != 0) misuse(std::string("nccl") + function + " is called without a current device");
  return device;
}

// The communicator of a call, whose device must be current.
Core& core_of(fdl::nccl::Comm comm, const char* function) {
  if (comm == nullptr) misuse("no communicator");
  Core& core = *reinterpret_cast<Core*>(comm);
  const int device = current_device(function);
  if (device != core.device) {
    misuse(std::string("nccl") + function + " is called with device " + std::to_string(device) +
           " as the current one, on a communicator of device " + std::to_string(core.device));
  }
  return core;
}

fdl::Dtype dtype_of(Type type) {
  switch (type) {
    case Type::int8:
      return fdl::Dtype::int8;
    case Type::uint8:
      return fdl::Dtype::uint8;
    case Type::int32:
      return fdl::Dtype::int32;
    case Type::uint32:
      return fdl::Dtype::uint32;
    case Type::int64:
      return fdl::Dtype::int64;
    case Type::uint64:
      return fdl::Dtype::uint64;
    case Type::float16:
      return fdl::Dtype::float16;
    case Type::float32:
      return fdl::Dtype::float32;
    case Type::float64:
      return fdl::Dtype::float64;
    case Type::bfloat16:
      return fdl::Dtype::bfloat16;
  }
  misuse("a type that is none");
}

fdl::Op op_of(RedOp op) {
  switch (op) {
    case RedOp::product:
      return fdl::Op::product;
    case RedOp::max:
      return fdl::Op::max;
    case RedOp::min:
      return fdl::Op::min;
    default:
      return fdl::Op::sum;
  }
}

bool is_float(Type type) { return fdl::kind_of(dtype_of(type)) != fdl::DtypeKind::integer; }

// NCCL has the factor of an average in the type of the elements.
double rounded(Type type, double factor) {
  const auto single = static_cast<float>(factor);
  if (type == Type::float16) return fdl::float16_to_float(fdl::float_to_float16(single));
  if (type == Type::bfloat16) return fdl::bfloat16_to_float(fdl::float_to_bfloat16(single));
  return type == Type::float32 ? single : factor;
}

using Blob = std::vector<std::byte>;

Blob load(const void* from, std::size_t bytes) {
  Blob blob(bytes);
  if (bytes == 0) return blob;
  fake_cuda_open_memory();
  std::memcpy(blob.data(), from, bytes);
  fake_cuda_close_memory();
  return blob;
}

void store(void* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  fake_cuda_open_memory();
  std::memcpy(to, from, bytes);
  fake_cuda_close_memory();
}

enum Kind : uint32_t {
  kAllReduce = 1,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAlltoAll,
  kGather,
  kScatter,
  kP2p
};

// One call of a group on its rank: the bytes it sends, those that arrive, and the result.
class Part {
 public:
  Part(Core& core, const Call& call)
      : core_(core), call_(call), dtype_(dtype_of(call.type)), bytes_(call.count * fdl::size_of(dtype_)) {
    const auto n = static_cast<std::size_t>(core.size);
    const bool root = call.peer == core.rank;
    const bool spreads = call.kind == kReduceScatter || call.kind == kAlltoAll || (call.kind == kScatter && root);
    const bool has_input = (call.kind != kBroadcast && call.kind != kScatter) || root;
    if (call.kind == kP2p) {
      if (call.source != nullptr) input_ = load(call.source, bytes_);
    } else if (has_input) {
      input_ = load(call.source, spreads ? n * bytes_ : bytes_);
    }
    fdl::scale(dtype_, input_.data(), input_.data(), input_.size() / fdl::size_of(dtype_), call.factor);
    arrived_.resize(n);
  }

  // `company` identifies the group's collectives; it is in the upper half of a message's kind.
  void add_messages(std::vector<fake::Message>& messages, uint32_t company) {
    // A sum needs the same place in the window on all ranks. The place is part of the kind, so different places are a
    // mismatch.
    if (call_.kind == kAllReduce) {
      call_.kind |= (core_.place_of(call_.source) * 3 + core_.place_of(call_.target)) << 8;
    }
    const bool root = call_.peer == core_.rank;
    if (call_.kind == kP2p) {
      if (call_.source == nullptr) arrived_[at(call_.peer)].resize(bytes_);
      std::byte* data = call_.source != nullptr ? input_.data() : arrived_[at(call_.peer)].data();
      messages.push_back({call_.source != nullptr, call_.peer, kP2p, data, bytes_});
      return;
    }
    const uint32_t kind = call_.kind | company;
    for (int r = 0; r < core_.size; ++r) {
      if (r == core_.rank) continue;
      if (sends_to(r, root)) messages.push_back({true, r, kind, input_.data() + offset_for(r), bytes_});
      if (!receives_from(r, root)) continue;
      arrived_[at(r)].resize(bytes_);
      messages.push_back({false, r, kind, arrived_[at(r)].data(), bytes_});
    }
  }

  void finish() {
    const bool root = call_.peer == core_.rank;
    call_.kind &= 0xff;
    auto* target = static_cast<std::byte*>(call_.target);
    if (call_.kind == kP2p) {
      if (call_.source == nullptr) store(target, arrived_[at(call_.peer)].data(), bytes_);
      return;
    }
    if (call_.kind == kBroadcast) {
      return store(target, root ? input_.data() : arrived_[at(call_.peer)].data(), bytes_);
    }
    if (call_.kind == kScatter) {
      return store(target, root ? input_.data() + offset_for(core_.rank) : arrived_[at(call_.peer)].data(), bytes_);
    }
    if ((call_.kind == kReduce || call_.kind == kGather) && !root) return;
    arrived_[at(core_.rank)].assign(input_.begin() + static_cast<std::ptrdiff_t>(offset_for(core_.rank)),
                                    input_.begin() + static_cast<std::ptrdiff_t>(offset_for(core_.rank) + bytes_));
    if (call_.kind == kAllGather || call_.kind == kGather || call_.kind == kAlltoAll) {
      for (std::size_t r = 0; r < arrived_.size(); ++r) store(target + r * bytes_, arrived_[r].data(), bytes_);
      return;
    }
    std::vector<const void*> sources;
    for (const Blob& each : arrived_) sources.push_back(each.data());
    Blob result(bytes_);
    fdl::reduce_many(dtype_, {op_of(call_.op)}, result.data(), sources, call_.count);
    // Integers are divided behind the sum; floats were multiplied before it.
    if (call_.op == RedOp::average && !is_float(call_.type)) {
      fdl::scale(dtype_, result.data(), result.data(), call_.count, 1.0 / core_.size);
    }
    store(target, result.data(), bytes_);
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  bool spreads() const { return call_.kind == kReduceScatter || call_.kind == kAlltoAll || call_.kind == kScatter; }
  std::size_t offset_for(int rank) const { return spreads() ? at(rank) * bytes_ : 0; }
  bool sends_to(int r, bool root) const {
    if (call_.kind == kReduce || call_.kind == kGather) return r == call_.peer;
    if (call_.kind == kBroadcast || call_.kind == kScatter) return root;
    return true;
  }
  bool receives_from(int r, bool root) const {
    if (call_.kind == kReduce || call_.kind == kGather) return root;
    if (call_.kind == kBroadcast || call_.kind == kScatter) return r == call_.peer;
    return true;
  }

  Core& core_;
  Call call_;
  const fdl::Dtype dtype_;
  const std::size_t bytes_;
  Blob input_;
  std::vector<Blob> arrived_;
};

// NCCL may reorder the collectives of a group, so all ranks must group the same ones. This hash makes different groups
// a mismatch.
uint32_t company_of(const std::vector<Call>& calls) {
  uint32_t company = 0;
  for (const Call& call : calls) {
    if (call.kind != kP2p) company = company * 31 + call.kind * 7 + static_cast<uint32_t>(call.count);
  }
  return company << 16;
}

void fail_asynchronously(Core& core, Outcome outcome, const std::string& words) {
  std::lock_guard lock(core.mutex);
  core.async = outcome;
  core.words = "fake: " + words;
}

void wait_stopped(Core& core) {
  std::unique_lock lock(core.mutex);
  core.changed.wait(lock, [&] { return core.stopped.load(); });
}

bool is_planned_to_fail() {
  std::lock_guard lock(settings().mutex);
  return ++settings().groups == settings().values["error_at"];
}

void run_on_stream(void* argument) {
  auto& work = *static_cast<Work*>(argument);
  Core& core = *work.core;
  {
    std::unique_lock lock(core.mutex);
    ++core.running;
    core.changed.wait(lock, [&] { return core.stopped.load() || work.turn < 0 || core.turn == work.turn; });
  }
  Room& room = Room::of(core.device);
  if (work.launch >= 0) room.enter(work.launch, setting("kernels"), [&] { return core.stopped.load(); });
  if (!core.stopped.load()) std::this_thread::sleep_for(std::chrono::microseconds(setting("delay_us")));
  if (!core.stopped.load() && is_planned_to_fail()) {
    fail_asynchronously(core, Outcome::remote_error, "the network has failed");
    wait_stopped(core);
  }
  if (!core.stopped.load()) {
    std::deque<Part> parts;
    std::vector<fake::Message> messages;
    for (const Call& call : work.calls) parts.emplace_back(core, call);
    for (Part& part : parts) part.add_messages(messages, company_of(work.calls));
    // Messages of a rank to itself match within the group: the k-th send and the k-th receive.
    const std::string why = core.rendezvous->exchange(messages, core.stopped);
    if (why.empty()) {
      for (Part& part : parts) part.finish();
    } else if (why != "stopped") {
      fail_asynchronously(core, Outcome::invalid_usage, why);
      wait_stopped(core);
    }
  }
  if (work.launch >= 0) room.leave(work.launch);
  std::lock_guard lock(core.mutex);
  --core.running;
  if (work.turn >= 0) ++core.turn;
  core.changed.notify_all();
}

// Call with the core's mutex held. The calling thread may have another current device, which matters for default
// streams.
Outcome put_on_stream(Core& core, Work& work) {
  void* context = nullptr;
  cuDevicePrimaryCtxRetain(&context, core.device);
  cuCtxPushCurrent_v2(context);
  int capturing = 0;
  cuStreamIsCapturing(work.calls.front().stream, &capturing);
  if (capturing == 0) {
    work.turn = core.queued++;
    work.launch = Room::of(core.device).launch();
  }
  const int code = fake_cuda_queue(work.calls.front().stream, run_on_stream, &work);
  cuCtxPopCurrent_v2(&context);
  return code == 0 ? Outcome::success : refuse(Outcome::cuda_error, "the stream takes no work");
}

// NCCL 2.32.3 chooses a symmetric kernel for such an allreduce, and has none.
bool lacks_kernel(Core& core, const Call& call) {
  return std::string_view(call.name) == "AllReduce" && call.op == RedOp::average && is_float(call.type) &&
         core.place_of(call.source) != 0 && core.place_of(call.target) != 0;
}

Outcome hand_in(Core& core, std::vector<Call> calls) {
  for (const Call& call : calls) {
    if (lacks_kernel(core, call)) return refuse(Outcome::cuda_error, "Cuda failure 'invalid device function'");
  }
  std::lock_guard lock(core.mutex);
  if (core.stopped.load()) return refuse(Outcome::invalid_usage, "the communicator was revoked");
  if (!core.joined) return refuse(Outcome::invalid_usage, "the communicator is not complete yet");
  if (!core.deferred.empty()) return refuse(Outcome::invalid_usage, "the communicator is still at work");
  for (Call& call : calls) {
    if (call.stream != calls.front().stream) misuse("several streams in one group");
    const auto own = core.factors.find(static_cast<int>(call.op));
    if (own != core.factors.end()) call.factor = own->second.second;
    if (call.op == RedOp::average && is_float(call.type)) call.factor = rounded(call.type, 1.0 / core.size);
  }
  core.works.push_back(std::make_unique<Work>(Work{&core, std::move(calls)}));
  if (core.blocking) return put_on_stream(core, *core.works.back());
  core.deferred.push_back(core.works.back().get());
  core.due = std::chrono::steady_clock::now() + std::chrono::microseconds(setting("defer_us"));
  return Outcome::in_progress;
}

// ---- Groups of calls, which are per thread ----

// The first collective of a kind connects the ranks: a blocking communicator waits in it until all have called one.
Outcome connect(Core& core, const std::set<uint32_t>& kinds) {
  if (setting("connects") == 0 || !core.blocking) return Outcome::success;
  // An abort by another thread gives it up meanwhile.
  const auto rendezvous = [&] {
    const std::lock_guard lock(core.mutex);
    return core.rendezvous;
  }();
  for (const uint32_t kind : kinds) {
    auto& arrived = rendezvous->state().connected[kind];
    if (core.kinds.insert(kind).second) arrived.fetch_add(1);
    while (arrived.load() < core.size && !core.stopped.load()) std::this_thread::sleep_for(100us);
  }
  return core.stopped.load() ? refuse(Outcome::remote_error, "the communicator was aborted") : Outcome::success;
}

thread_local int depth = 0;
thread_local std::map<Core*, std::vector<Call>> pending;
thread_local Outcome group_error = Outcome::success;

Outcome end_of_group() {
  auto groups = std::exchange(pending, {});
  const Outcome error = std::exchange(group_error, Outcome::success);
  if (error != Outcome::success) return error;
  Outcome result = Outcome::success;
  for (auto& [core, calls] : groups) {
    std::set<uint32_t> kinds;
    for (const Call& call : calls) kinds.insert(call.kind);
    if (const Outcome connected = connect(*core, kinds); connected != Outcome::success) return connected;
    const Outcome outcome = hand_in(*core, std::move(calls));
    if (outcome != Outcome::success) result = outcome;
  }
  return result;
}

// NCCL refuses a call during a registration, or loses it: it may return success, and queues nothing.
void refuse_during_registration(Core& core, const char* function) {
  const std::lock_guard lock(core.mutex);
  if (core.promised_windows.empty()) return;
  misuse(std::string("nccl") + function + " is called before the registration of a window has ended");
}

Outcome add(fdl::nccl::Comm comm, const Call& call) {
  Core* core = &core_of(comm, call.name);
  refuse_during_registration(*core, call.name);
  if (call.count == 0) return Outcome::success;
  pending[core].push_back(call);
  return depth > 0 ? Outcome::success : end_of_group();
}

// ---- Creation and end ----

Outcome poll_devices(Core& core) {
  auto& shared = core.rendezvous->state();
  for (int a = 0; a < core.size; ++a) {
    for (int b = 0; b < a; ++b) {
      if (std::memcmp(shared.devices[a], shared.devices[b], sizeof shared.devices[a]) != 0) continue;
      if (setting("version") >= 23000 && setting("multi_rank_gpu") != 0) continue;
      core.words = "fake: Multiple Ranks are using the same GPU/Partition";
      return Outcome::invalid_usage;
    }
  }
  return Outcome::success;
}

// Call with the core's mutex held.
Outcome state_of(Core& core) {
  if (core.async != Outcome::success) return core.async;
  if (core.stopped.load()) return Outcome::success;
  if (!core.joined) {
    if (setting("hang_at_start") != 0 || !core.rendezvous->complete()) return Outcome::in_progress;
    core.joined = true;
    core.async = poll_devices(core);
    if (core.async != Outcome::success) return core.async;
  }
  if (!core.deferred.empty()) {
    if (std::chrono::steady_clock::now() < core.due) return Outcome::in_progress;
    Work* work = core.deferred.front();
    core.deferred.pop_front();
    const Outcome outcome = put_on_stream(core, *work);
    if (outcome != Outcome::success) core.async = outcome;
    return core.async;
  }
  auto& shared = core.rendezvous->state();
  if (shared.windows.load() < core.windows * core.size) return Outcome::in_progress;
  if (core.windows > 0) {
    for (int r = 1; r < core.size; ++r) {
      if (shared.window_bytes[core.windows % 2][r].load() != shared.window_bytes[core.windows % 2][0].load())
        misuse("windows of different sizes");
    }
  }
  for (const auto& [window, memory] : core.promised_windows) *window = reinterpret_cast<fdl::nccl::Window>(memory);
  core.promised_windows.clear();
  if (core.finalizing && (shared.finalized.load() < core.size || core.running > 0 || core.turn < core.queued)) {
    return Outcome::in_progress;
  }
  return Outcome::success;
}

Outcome wait_if_blocking(Core& core) {
  for (;;) {
    {
      std::lock_guard lock(core.mutex);
      const Outcome state = state_of(core);
      if (state != Outcome::in_progress || !core.blocking) return state;
    }
    std::this_thread::sleep_for(100us);
  }
}

Outcome begin(fdl::nccl::Comm* comm, const std::string& name, int rank, int size, bool blocking, int device) {
  char identity[16] = {};
  cuDeviceGetUuid_v2(identity, device);
  auto core = std::make_unique<Core>();
  core->rendezvous = fake::Rendezvous::join(name, rank, size, identity);
  if (core->rendezvous == nullptr) return refuse(Outcome::invalid_argument, "ranks disagree about the communicator");
  core->rank = rank;
  core->size = size;
  core->device = device;
  core->blocking = blocking;
  count("communicators", 1);
  Core& made = *core.release();
  {
    std::lock_guard lock(cores().mutex);
    cores().all.push_back(&made);
  }
  *comm = reinterpret_cast<fdl::nccl::Comm>(&made);
  return wait_if_blocking(made);
}

void stop(Core& core) {
  if (core.parent != nullptr) stop(*core.parent);
  std::lock_guard lock(core.mutex);
  core.stopped.store(true);
  core.deferred.clear();
  core.changed.notify_all();
}

Outcome release(Core& core, bool aborting) {
  if (aborting) stop(core);
  {
    std::unique_lock lock(core.mutex);
    core.changed.wait(lock, [&] { return core.running == 0; });
  }
  if (!core.registered.empty() && !aborting) misuse("a communicator is destroyed with buffers registered");
  if (!core.window_memory.empty() && !aborting) misuse("a communicator is destroyed with windows registered");
  if (!core.factors.empty() && !aborting) misuse("a communicator is destroyed with operations of its own");
  count("registrations", -static_cast<long>(core.registered.size()));
  count("windows", -static_cast<long>(core.window_memory.size()));
  count("operations", -static_cast<long>(core.factors.size()));
  count("communicators", -1);
  if (core.parent != nullptr) count("shared", -1);
  std::lock_guard lock(core.mutex);
  core.registered.clear();
  core.window_memory.clear();
  core.rendezvous.reset();
  return Outcome::success;
}

// ---- Memory ----

struct Allocations {
  std::mutex mutex;
  std::map<const void*, std::size_t> bytes;  // of ncclMemAlloc's allocations
};

Allocations& allocations() {
  static Allocations* made = new Allocations;
  return *made;
}

std::size_t allocated_at(const void* memory) {
  std::lock_guard lock(allocations().mutex);
  const auto found = allocations().bytes.find(memory);
  return found == allocations().bytes.end() ? 0 : found->second;
}

// Call with the core's mutex held.
bool works_on(const Core& core, const void* memory, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(memory);
  const auto inside = [&](const void* place) { return place >= begin && place < begin + bytes; };
  if (core.stopped.load()) return false;
  return std::any_of(core.works.begin(), core.works.end(), [&](const auto& work) {
    const bool waits = std::find(core.deferred.begin(), core.deferred.end(), work.get()) != core.deferred.end();
    if (!waits && (work->turn < 0 || work->turn < core.turn)) return false;
    return std::any_of(work->calls.begin(), work->calls.end(),
                       [&](const Call& call) { return inside(call.source) || inside(call.target); });
  });
}

void look_for_users(const void* memory) {
  const std::size_t bytes = allocated_at(memory);
  if (bytes == 0) misuse("memory is freed that was not allocated");
  std::lock_guard lock(cores().mutex);
  for (Core* core : cores().all) {
    std::lock_guard of_core(core->mutex);
    const bool known = std::any_of(core->registered.begin(), core->registered.end(),
                                   [&](const auto& each) { return each.second == memory; });
    if (known || core->window_memory.contains(static_cast<const std::byte*>(memory)))
      misuse("memory is freed that a communicator still has registered");
    if (works_on(*core, memory, bytes)) misuse("memory is freed that work still uses");
  }
}

}  // namespace

// ---- Functions for tests ----

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void fake_nccl_set(const char* what, long value) {
  std::lock_guard lock(settings().mutex);
  if (!settings().values.contains(what)) misuse(std::string("no setting ") + what);
  settings().values[what] = value;
  if (std::strcmp(what, "error_at") == 0) settings().groups = 0;
}
EXPORT void fake_nccl_fail(const char* function, int k, int code) {
  std::lock_guard lock(settings().mutex);
  settings().plans.insert({function, {settings().calls[function] + k, code}});
}
EXPORT void fake_nccl_reset(void) {
  std::lock_guard lock(settings().mutex);
  settings().reset();
}
EXPORT long fake_nccl_calls(const char* function) {
  std::lock_guard lock(settings().mutex);
  return settings().calls[function];
}
EXPORT long fake_nccl_count(const char* what) {
  if (std::strcmp(what, "files") == 0) return fake::rendezvous_files();
  std::lock_guard lock(settings().mutex);
  return settings().counts[what];
}

// ---- NCCL's own functions ----

using fdl::nccl::Comm;
using fdl::nccl::ConfigOf218;
using fdl::nccl::UniqueId;
using fdl::nccl::Window;

EXPORT Outcome ncclGetVersion(int* version) {
  *version = static_cast<int>(setting("version"));
  return Outcome::success;
}
EXPORT const char* ncclGetErrorString(Outcome outcome) {
  static const char* const kWords[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress",
                                       "timeout"};
  const int number = static_cast<int>(outcome);
  return number >= 0 && number < 9 ? kWords[number] : "unknown result code";
}
EXPORT const char* ncclGetLastError(Comm comm) {
  if (comm == nullptr) return last_error.c_str();
  Core& core = *reinterpret_cast<Core*>(comm);
  std::lock_guard lock(core.mutex);
  return core.words.empty() ? last_error.c_str() : core.words.c_str();
}
EXPORT Outcome ncclGetUniqueId(UniqueId* id) {
  ENTER("GetUniqueId");
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "%s", fake::Rendezvous::make_name().c_str());
  return Outcome::success;
}
EXPORT Outcome ncclCommInitRankConfig(Comm* comm, int size, UniqueId id, int rank, ConfigOf218* config) {
  ENTER("CommInitRankConfig");
  if (config->magic != fdl::nccl::kConfigMagic || config->size < sizeof(ConfigOf218) || config->version < 21800 ||
      config->padding != fdl::nccl::kUndefined) {
    return refuse(Outcome::invalid_argument, "the config is not as it must be");
  }
  int device = 0;
  if (cuCtxGetDevice(&device) != 0) return refuse(Outcome::cuda_error, "no device is current");
  const Outcome outcome = begin(comm, id.internal, rank, size, config->blocking != 0, device);
  if (outcome == Outcome::success || outcome == Outcome::in_progress) {
    core_of(*comm, "CommInitRankConfig").shares = config->split_share == 1;
  }
  return outcome;
}
EXPORT Outcome ncclCommSplit(Comm comm, int color, int key, Comm* made, ConfigOf218* config) {
  ENTER("CommSplit", 21800);
  Core& core = core_of(comm, "CommSplit");
  if (color != 0 || key != core.rank) misuse("a split that the fake does not support");
  if (config->split_share != fdl::nccl::kUndefined) misuse("split_share in the configuration of a split has no effect");
  const std::string name = core.rendezvous->name() + "-" + std::to_string(++core.splits);
  const Outcome outcome = begin(made, name, key, core.size, false, core.device);
  if (outcome != Outcome::success && outcome != Outcome::in_progress) return outcome;
  Core& child = core_of(*made, "CommSplit");
  std::lock_guard lock(child.mutex);
  child.blocking = config->blocking != 0;
  child.parent = core.shares ? &core : nullptr;
  if (core.shares) count("shared", 1);
  child.joined = true;  // the exchange waits for ranks that come late
  return Outcome::success;
}
EXPORT Outcome ncclCommFinalize(Comm comm) {
  ENTER("CommFinalize");
  Core& core = core_of(comm, "CommFinalize");
  {
    std::lock_guard lock(core.mutex);
    if (core.stopped.load()) return refuse(Outcome::invalid_usage, "it was revoked");
    core.finalizing = true;
    core.rendezvous->state().finalized.fetch_add(1);
  }
  return wait_if_blocking(core);
}
EXPORT Outcome ncclCommDestroy(Comm comm) {
  ENTER("CommDestroy");
  return release(core_of(comm, "CommDestroy"), false);
}
EXPORT Outcome ncclCommAbort(Comm comm) {
  ENTER("CommAbort");
  return release(core_of(comm, "CommAbort"), true);
}
EXPORT Outcome ncclCommRevoke(Comm comm, int flags) {
  ENTER("CommRevoke", 22807);
  if (flags != 0) misuse("flags of a revoke");
  stop(core_of(comm, "CommRevoke"));
  return Outcome::in_progress;
}
EXPORT Outcome ncclCommGetAsyncError(Comm comm, Outcome* state) {
  ENTER("CommGetAsyncError");
  Core& core = core_of(comm, "CommGetAsyncError");
  std::lock_guard lock(core.mutex);
  *state = state_of(core);
  return Outcome::success;
}
EXPORT Outcome ncclGroupStart() {
  ENTER("GroupStart");
  current_device("GroupStart");
  ++depth;
  return Outcome::success;
}
EXPORT Outcome ncclGroupEnd() {
  if (depth == 0) misuse("the end of no group");
  current_device("GroupEnd");
  --depth;
  if (const Outcome planned = enter("GroupEnd"); planned != Outcome::success) group_error = planned;
  return depth > 0 ? Outcome::success : end_of_group();
}
EXPORT Outcome ncclAllReduce(const void* from, void* to, std::size_t n, Type type, RedOp op, Comm comm, void* stream) {
  ENTER("AllReduce");
  return add(comm, {"AllReduce", kAllReduce, from, to, n, type, op, 0, stream});
}
EXPORT Outcome ncclReduce(const void* from, void* to, std::size_t n, Type type, RedOp op, int root, Comm comm,
                          void* stream) {
  ENTER("Reduce");
  return add(comm, {"Reduce", kReduce, from, to, n, type, op, root, stream});
}
EXPORT Outcome ncclBroadcast(const void* from, void* to, std::size_t n, Type type, int root, Comm comm, void* stream) {
  ENTER("Broadcast");
  return add(comm, {"Broadcast", kBroadcast, from, to, n, type, RedOp::sum, root, stream});
}
EXPORT Outcome ncclAllGather(const void* from, void* to, std::size_t n, Type type, Comm comm, void* stream) {
  ENTER("AllGather");
  return add(comm, {"AllGather", kAllGather, from, to, n, type, RedOp::sum, 0, stream});
}
EXPORT Outcome ncclReduceScatter(const void* from, void* to, std::size_t n, Type type, RedOp op, Comm comm,
                                 void* stream) {
  ENTER("ReduceScatter");
  const auto* start = static_cast<const std::byte*>(from);
  const std::size_t bytes = n * fdl::size_of(dtype_of(type));
  const auto own = start + static_cast<std::size_t>(core_of(comm, "ReduceScatter").rank) * bytes;
  if (to >= start && to < start + static_cast<std::size_t>(core_of(comm, "ReduceScatter").size) * bytes && to != own) {
    misuse("a reduce_scatter in place that is not at its own place");
  }
  return add(comm, {"ReduceScatter", kReduceScatter, from, to, n, type, op, 0, stream});
}
EXPORT Outcome ncclAlltoAll(const void* from, void* to, std::size_t n, Type type, Comm comm, void* stream) {
  ENTER("AlltoAll", 22800);
  if (from == to) misuse("an alltoall in place");
  return add(comm, {"AlltoAll", kAlltoAll, from, to, n, type, RedOp::sum, 0, stream});
}
EXPORT Outcome ncclGather(const void* from, void* to, std::size_t n, Type type, int root, Comm comm, void* stream) {
  ENTER("Gather", 22800);
  return add(comm, {"Gather", kGather, from, to, n, type, RedOp::sum, root, stream});
}
EXPORT Outcome ncclScatter(const void* from, void* to, std::size_t n, Type type, int root, Comm comm, void* stream) {
  ENTER("Scatter", 22800);
  return add(comm, {"Scatter", kScatter, from, to, n, type, RedOp::sum, root, stream});
}
EXPORT Outcome ncclSend(const void* from, std::size_t n, Type type, int peer, Comm comm, void* stream) {
  ENTER("Send");
  return add(comm, {"Send", kP2p, from, nullptr, n, type, RedOp::sum, peer, stream});
}
EXPORT Outcome ncclRecv(void* to, std::size_t n, Type type, int peer, Comm comm, void* stream) {
  ENTER("Recv");
  return add(comm, {"Recv", kP2p, nullptr, to, n, type, RedOp::sum, peer, stream});
}
EXPORT Outcome ncclRedOpCreatePreMulSum(RedOp* op, void* scalar, Type type, int residence, Comm comm) {
  ENTER("RedOpCreatePreMulSum");
  if (residence != fdl::nccl::kScalarOnHost) misuse("a factor that is not on the host");
  double factor = 0;
  float single = 0;
  uint16_t half = 0;
  if (type == Type::float64) {
    std::memcpy(&factor, scalar, sizeof factor);
  } else if (type == Type::float32) {
    std::memcpy(&single, scalar, sizeof single);
    factor = single;
  } else if (type == Type::bfloat16) {
    std::memcpy(&half, scalar, sizeof half);
    factor = fdl::bfloat16_to_float(half);
  } else {
    misuse("a factor of another type");
  }
  Core& core = core_of(comm, "RedOpCreatePreMulSum");
  std::lock_guard lock(core.mutex);
  core.factors[core.next_operation] = {type, factor};
  *op = static_cast<RedOp>(core.next_operation++);
  count("operations", 1);
  return Outcome::success;
}
EXPORT Outcome ncclRedOpDestroy(RedOp op, Comm comm) {
  ENTER("RedOpDestroy");
  Core& core = core_of(comm, "RedOpDestroy");
  std::lock_guard lock(core.mutex);
  if (core.factors.erase(static_cast<int>(op)) == 0) misuse("an operation that is none");
  count("operations", -1);
  return Outcome::success;
}
EXPORT Outcome ncclMemAlloc(void** memory, std::size_t bytes) {
  ENTER("MemAlloc", 21900);
  int device = 0;
  if (cuCtxGetDevice(&device) != 0) return refuse(Outcome::cuda_error, "no device is current");
  if (setting("memory_waits") != 0) cuCtxSynchronize();
  *memory = fake_cuda_new(device, bytes);
  if (*memory == nullptr) return refuse(Outcome::cuda_error, "out of memory");
  count("memory", 1);
  std::lock_guard lock(allocations().mutex);
  allocations().bytes[*memory] = bytes;
  return Outcome::success;
}
EXPORT Outcome ncclMemFree(void* memory) {
  ENTER("MemFree", 21900);
  current_device("MemFree");
  look_for_users(memory);
  if (setting("memory_waits") != 0) cuCtxSynchronize();
  {
    std::lock_guard lock(allocations().mutex);
    allocations().bytes.erase(memory);
  }
  fake_cuda_delete(memory);
  count("memory", -1);
  return Outcome::success;
}
EXPORT Outcome ncclCommRegister(Comm comm, void* memory, std::size_t, void** handle) {
  ENTER("CommRegister", 21900);
  Core& core = core_of(comm, "CommRegister");
  refuse_during_registration(core, "CommRegister");
  {
    std::lock_guard lock(core.mutex);
    *handle = reinterpret_cast<void*>(core.next_handle);
    core.registered[core.next_handle++] = memory;
  }
  count("registrations", 1);
  return Outcome::success;
}
EXPORT Outcome ncclCommDeregister(Comm comm, void* handle) {
  ENTER("CommDeregister", 21900);
  Core& core = core_of(comm, "CommDeregister");
  {
    std::lock_guard lock(core.mutex);
    const auto known = core.registered.find(reinterpret_cast<std::size_t>(handle));
    if (known == core.registered.end()) misuse("a registration that is none");
    if (works_on(core, known->second, allocated_at(known->second))) misuse("memory is forgotten that work still uses");
    core.registered.erase(known);
  }
  count("registrations", -1);
  return Outcome::success;
}
// A nonblocking call returns success at once, and writes the window when the communicator's state becomes success.
EXPORT Outcome ncclCommWindowRegister(Comm comm, void* memory, std::size_t bytes, Window* window, int flags) {
  ENTER("CommWindowRegister", 22700);
  if (flags != fdl::nccl::kWindowSymmetric || bytes % fdl::nccl::kWindowAlignment != 0) misuse("a strange window");
  Core& core = core_of(comm, "CommWindowRegister");
  if (setting("windows") == 0) {
    *window = nullptr;
    return Outcome::success;
  }
  {
    std::lock_guard lock(core.mutex);
    ++core.windows;
    core.window_memory[static_cast<const std::byte*>(memory)] = {core.windows, bytes};
    auto& shared = core.rendezvous->state();
    shared.window_bytes[core.windows % 2][core.rank].store(bytes);
    shared.windows.fetch_add(1);
    *window = nullptr;
    core.promised_windows[window] = memory;
  }
  count("windows", 1);
  return core.blocking ? wait_if_blocking(core) : Outcome::success;
}
EXPORT Outcome ncclCommWindowDeregister(Comm comm, Window window) {
  ENTER("CommWindowDeregister", 22700);
  Core& core = core_of(comm, "CommWindowDeregister");
  {
    std::lock_guard lock(core.mutex);
    const void* memory = window;
    if (works_on(core, memory, allocated_at(memory))) misuse("memory is forgotten that work still uses");
    if (core.window_memory.erase(static_cast<const std::byte*>(memory)) == 0) misuse("a window that is none");
  }
  count("windows", -1);
  return Outcome::success;
}

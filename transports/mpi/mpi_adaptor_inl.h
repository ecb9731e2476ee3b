// The adaptor, written once for all ABIs. A file of one ABI includes that ABI's <mpi.h> and then this file, which uses
// the types and constants of the header but no symbol of a library: functions are looked up by name.
#pragma once

#include <dlfcn.h>
#include <fmt/core.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/relax.h"
#include "transports/mpi/mpi_adaptor.h"

namespace fdl {
namespace {

// The functions that are looked up: MPI_<name>.
#define FDL_MPI_CALLS(ROW) \
  ROW(Initialized)         \
  ROW(Finalized)           \
  ROW(Init_thread)         \
  ROW(Finalize)            \
  ROW(Query_thread)        \
  ROW(Is_thread_main)      \
  ROW(Comm_rank)           \
  ROW(Comm_size)           \
  ROW(Comm_group)          \
  ROW(Group_incl)          \
  ROW(Group_free)          \
  ROW(Comm_create_group)   \
  ROW(Comm_create_keyval)  \
  ROW(Comm_set_attr)       \
  ROW(Comm_set_errhandler) \
  ROW(Comm_free)           \
  ROW(Isend)               \
  ROW(Irecv)               \
  ROW(Iallreduce)          \
  ROW(Ireduce)             \
  ROW(Ibcast)              \
  ROW(Iallgatherv)         \
  ROW(Ibarrier)            \
  ROW(Test)                \
  ROW(Cancel)              \
  ROW(Get_count)           \
  ROW(Error_string)        \
  ROW(Get_library_version)

struct Calls {
#define ROW(name) decltype(&::MPI_##name) name = nullptr;
  FDL_MPI_CALLS(ROW)
#undef ROW
};

// A variable of the library that a constant of the header stands for, in ABIs that have such constants.
[[maybe_unused]] void* symbol_of(void* library, const char* name) { return ::dlsym(library, name); }

// MPI's text is of several lines and may name its build; the first one has name and version.
std::string first_words(const char* text) {
  std::string line(text, std::strcspn(text, "\n,"));
  while (!line.empty() && line.back() == ' ') line.pop_back();
  for (char& byte : line) byte = byte == '\t' ? ' ' : byte;
  return line;
}

constexpr int64_t kCancelPatience_ns = 100'000'000;

class Adaptor final : public MpiLibrary {
 public:
  Adaptor(void* library, const Calls& calls) : library_(library), calls_(calls) {}

  Status start(const std::string& file) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    calls_.Get_library_version(text, &length);
    description_ = fmt::format("{} ({})", first_words(text), file);
    if (is_finalized()) {
      return Status(Code::unsupported,
                    fmt::format("mpi: the program has called MPI_Finalize of {}, and MPI cannot start again; start "
                                "farandole before, or use another transport",
                                description_));
    }
    int initialized = 0;
    calls_.Initialized(&initialized);
    int level = MPI_THREAD_SINGLE;
    if (initialized == 0) {
      if (const int code = calls_.Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level); code != MPI_SUCCESS) {
        return failed("MPI_Init_thread", code);
      }
      owned_ = true;
    } else {
      calls_.Query_thread(&level);
    }
    serialized_ = level == MPI_THREAD_SERIALIZED;
    if (level < MPI_THREAD_SERIALIZED) FDL_RETURN_IF_ERROR(take_only_thread(level));
    world_ = FDL_MPI_CONSTANT(library_, MPI_Comm, MPI_COMM_WORLD);
    byte_ = FDL_MPI_CONSTANT(library_, MPI_Datatype, MPI_BYTE);
    calls_.Comm_rank(world_, &rank_);
    calls_.Comm_size(world_, &size_);
    return {};
  }

  bool may_call() const override { return !only_thread_ || *only_thread_ == std::this_thread::get_id(); }
  Status wrong_thread() const override {
    return Status(Code::unsupported,
                  fmt::format("mpi: {} was started with {}, so only the thread that has started MPI may run operations "
                              "of farandole over it; call from that thread, or start MPI with MPI_Init_thread(..., "
                              "MPI_THREAD_MULTIPLE, ...)",
                              description_, level_));
  }

  // Runs when the process ends.
  void finalize() {
    if (!owned_ || is_finalized() || !may_call()) return;
    if (hook_ != nullptr) std::exchange(hook_, nullptr)();
    if (open_ == 0 && !abandoned_) calls_.Finalize();
  }

  // MPI_Finalize first deletes the attributes of MPI_COMM_SELF, while MPI still works.
  void before_finalize(void (*hook)()) override {
    if (std::exchange(hook_, hook) != nullptr) return;
    const Turn turn(*this);
    int key = 0;
    calls_.Comm_create_keyval(
        [](MPI_Comm, int, void*, void*, void*, int* copied) -> int { return *copied = 0, MPI_SUCCESS; },
        [](MPI_Comm, int, void* adaptor, void*) -> int {
          if (auto* run = std::exchange(static_cast<Adaptor*>(adaptor)->hook_, nullptr)) run();
          return MPI_SUCCESS;
        },
        &key, nullptr);
    calls_.Comm_set_attr(FDL_MPI_CONSTANT(library_, MPI_Comm, MPI_COMM_SELF), key, this);
  }

  const std::string& description() const override { return description_; }
  int world_rank() const override { return rank_; }
  int world_size() const override { return size_; }

  Result<MpiComm> make_communicator(std::span<const int> world_ranks, int tag) override {
    const Turn turn(*this);
    MPI_Group all, members;
    MPI_Comm made;
    int code = calls_.Comm_group(world_, &all);
    if (code != MPI_SUCCESS) return failed("MPI_Comm_group", code);
    code = calls_.Group_incl(all, static_cast<int>(world_ranks.size()), world_ranks.data(), &members);
    calls_.Group_free(&all);
    if (code != MPI_SUCCESS) return failed("MPI_Group_incl", code);
    code = calls_.Comm_create_group(world_, members, tag, &made);
    calls_.Group_free(&members);
    if (code != MPI_SUCCESS) return failed("MPI_Comm_create_group", code);
    // Errors come back as codes; by default MPI would end the process.
    calls_.Comm_set_errhandler(made, FDL_MPI_CONSTANT(library_, MPI_Errhandler, MPI_ERRORS_RETURN));
    ++open_;
    return bits_of(made);
  }

  void end_communicator(MpiComm comm, MpiEnd end) override {
    --open_;
    if (end == MpiEnd::abandoned) abandoned_ = true;
    if (end != MpiEnd::freed || is_finalized() || !may_call()) return;
    const Turn turn(*this);
    MPI_Comm ended = from_bits<MPI_Comm>(comm);
    calls_.Comm_free(&ended);
  }

  Status start_send(MpiComm comm, int peer, int tag, ConstBytes bytes, MpiRequest& request) override {
    const Turn turn(*this);
    MPI_Request begun;
    const int code =
        calls_.Isend(bytes.data(), static_cast<int>(bytes.size()), byte_, peer, tag, from_bits<MPI_Comm>(comm), &begun);
    if (code != MPI_SUCCESS) return failed("MPI_Isend", code);
    request = bits_of(begun);
    return {};
  }

  Status start_recv(MpiComm comm, int peer, int tag, Bytes bytes, MpiRequest& request) override {
    const Turn turn(*this);
    MPI_Request begun;
    const int code = calls_.Irecv(bytes.data(), static_cast<int>(bytes.size()), byte_,
                                  peer == kFromAnyRank ? MPI_ANY_SOURCE : peer, tag, from_bits<MPI_Comm>(comm), &begun);
    if (code != MPI_SUCCESS) return failed("MPI_Irecv", code);
    request = bits_of(begun);
    return {};
  }

  bool can_reduce(Dtype dtype, Op op) const override {
    return type_of(dtype).has_value() && op_of(dtype, op).has_value();
  }

  Status start_collective(MpiComm comm, const MpiCollective& call, MpiRequest& request) override {
    const Turn turn(*this);
    const MPI_Comm ranks = from_bits<MPI_Comm>(comm);
    const int count = static_cast<int>(call.count);
    const void* const input = call.in_place ? FDL_MPI_CONSTANT(library_, void*, MPI_IN_PLACE) : call.input;
    MPI_Request begun;
    int code = MPI_SUCCESS;
    switch (call.collective) {
      case Collective::allreduce:
        code = calls_.Iallreduce(input, call.output, count, *type_of(call.dtype), *op_of(call.dtype, call.op), ranks,
                                 &begun);
        break;
      case Collective::reduce:
        code = calls_.Ireduce(input, call.output, count, *type_of(call.dtype), *op_of(call.dtype, call.op), call.root,
                              ranks, &begun);
        break;
      case Collective::broadcast:
        code = calls_.Ibcast(call.output, static_cast<int>(call.count * size_of(call.dtype)), byte_, call.root, ranks,
                             &begun);
        break;
      case Collective::allgather:
        code = calls_.Iallgatherv(input, count, byte_, call.output, call.counts, call.places, byte_, ranks, &begun);
        break;
      case Collective::barrier:
        code = calls_.Ibarrier(ranks, &begun);
        break;
      default:
        return Status(Code::internal, "mpi: this collective is not one that MPI runs here; please report it");
    }
    if (code != MPI_SUCCESS) return failed("a collective", code);
    request = bits_of(begun);
    return {};
  }

  Result<bool> test(MpiRequest& request, MpiArrival& arrival) override {
    const Turn turn(*this);
    return test_now(request, arrival);
  }

  bool cancel_recv(MpiRequest& request) override {
    if (is_finalized()) return true;
    const Turn turn(*this);
    MPI_Request begun = from_bits<MPI_Request>(request);
    calls_.Cancel(&begun);
    request = bits_of(begun);
    MpiArrival ignored;
    for (const Deadline deadline = Deadline::after_ns(kCancelPatience_ns); !deadline.passed(); relax()) {
      const auto done = test_now(request, ignored);
      if (!done.ok() || *done) return true;
    }
    return false;
  }

 private:
  // The progress thread cannot call MPI then: it leaves all messages to the thread that waits for them.
  Status take_only_thread(int level) {
    level_ = level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE";
    int is_main = 0;
    calls_.Is_thread_main(&is_main);
    only_thread_ = std::this_thread::get_id();
    if (is_main == 0) return wrong_thread();
    int rank = 0;
    calls_.Comm_rank(FDL_MPI_CONSTANT(library_, MPI_Comm, MPI_COMM_WORLD), &rank);
    log_at(rank == 0 ? LogLevel::warning : LogLevel::debug,
           "mpi: {} was started with {}: operations move on only while the program's thread that has started MPI waits "
           "in farandole; with MPI_THREAD_MULTIPLE they do so in the background",
           description_, level_);
    return {};
  }

  // Excludes other threads where MPI demands it.
  class Turn {
   public:
    explicit Turn(Adaptor& adaptor) : lock_(adaptor.serialized_ ? &adaptor.mutex_ : nullptr) {
      if (lock_ != nullptr) lock_->lock();
    }
    ~Turn() {
      if (lock_ != nullptr) lock_->unlock();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    std::mutex* lock_;
  };

  bool is_finalized() const {
    int finalized = 0;
    calls_.Finalized(&finalized);
    return finalized != 0;
  }

  // Handles are ints or pointers.
  template <typename Handle>
  static uint64_t bits_of(Handle handle) {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<uintptr_t>(handle);
    } else {
      return static_cast<unsigned>(handle);
    }
  }
  template <typename Handle>
  static Handle from_bits(uint64_t bits) {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<Handle>(static_cast<uintptr_t>(bits));
    } else {
      return static_cast<Handle>(bits);
    }
  }

  // The types and operations that MPI has.
  std::optional<MPI_Datatype> type_of(Dtype dtype) const {
    switch (dtype) {
#define FDL_TYPE(ours, theirs) \
  case Dtype::ours:            \
    return FDL_MPI_CONSTANT(library_, MPI_Datatype, theirs)
      FDL_TYPE(uint8, MPI_UINT8_T);
      FDL_TYPE(int8, MPI_INT8_T);
      FDL_TYPE(uint16, MPI_UINT16_T);
      FDL_TYPE(int16, MPI_INT16_T);
      FDL_TYPE(uint32, MPI_UINT32_T);
      FDL_TYPE(int32, MPI_INT32_T);
      FDL_TYPE(uint64, MPI_UINT64_T);
      FDL_TYPE(int64, MPI_INT64_T);
      FDL_TYPE(float32, MPI_FLOAT);
      FDL_TYPE(float64, MPI_DOUBLE);
#undef FDL_TYPE
      default:
        return std::nullopt;
    }
  }
  std::optional<MPI_Op> op_of(Dtype dtype, Op op) const {
    const bool integers = kind_of(dtype) == DtypeKind::integer;
    switch (op) {
      case Op::sum:
      case Op::average:  // the caller scales
        return FDL_MPI_CONSTANT(library_, MPI_Op, MPI_SUM);
      case Op::product:
        return FDL_MPI_CONSTANT(library_, MPI_Op, MPI_PROD);
      case Op::min:
        return FDL_MPI_CONSTANT(library_, MPI_Op, MPI_MIN);
      case Op::max:
        return FDL_MPI_CONSTANT(library_, MPI_Op, MPI_MAX);
      case Op::bit_and:
        return integers ? std::optional(FDL_MPI_CONSTANT(library_, MPI_Op, MPI_BAND)) : std::nullopt;
      case Op::bit_or:
        return integers ? std::optional(FDL_MPI_CONSTANT(library_, MPI_Op, MPI_BOR)) : std::nullopt;
      case Op::bit_xor:
        return integers ? std::optional(FDL_MPI_CONSTANT(library_, MPI_Op, MPI_BXOR)) : std::nullopt;
      default:
        return std::nullopt;
    }
  }

  Result<bool> test_now(MpiRequest& request, MpiArrival& arrival) {
    MPI_Request begun = from_bits<MPI_Request>(request);
    MPI_Status status;
    int done = 0;
    const int code = calls_.Test(&begun, &done, &status);
    if (code != MPI_SUCCESS) {
      request = 0;
      return failed("MPI_Test", code);
    }
    if (done == 0) return false;
    request = 0;
    int count = 0;
    calls_.Get_count(&status, byte_, &count);
    arrival = {status.MPI_SOURCE, count < 0 ? 0 : static_cast<std::size_t>(count)};
    return true;
  }

  Status failed(const char* call, int code) const {
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    calls_.Error_string(code, text, &length);
    return Status(Code::transport, fmt::format("mpi: {} failed: {} ({})", call, text, description_));
  }

  void* library_;
  Calls calls_;
  std::string description_;
  bool owned_ = false;        // farandole has started MPI
  void (*hook_)() = nullptr;  // of before_finalize(), until it has run
  std::atomic<int> open_{0};  // communicators in use
  std::atomic<bool> abandoned_{false};
  bool serialized_ = false;  // MPI_THREAD_SERIALIZED: calls exclude each other
  std::optional<std::thread::id> only_thread_;  // MPI_THREAD_FUNNELED and less
  const char* level_ = "";                      // its name
  std::mutex mutex_;
  MPI_Comm world_;
  MPI_Datatype byte_;
  int rank_ = 0;
  int size_ = 1;
};

Result<std::unique_ptr<MpiLibrary>> make_adaptor(void* library, const std::string& file) {
  Calls calls;
#define ROW(name)                                                                                               \
  calls.name = reinterpret_cast<decltype(calls.name)>(::dlsym(library, "MPI_" #name));                          \
  if (calls.name == nullptr) {                                                                                  \
    return Status(Code::unsupported, fmt::format("mpi: {} has no MPI_{}; farandole needs MPI 3", file, #name)); \
  }
  FDL_MPI_CALLS(ROW)
#undef ROW
  auto adaptor = std::make_unique<Adaptor>(library, calls);
  FDL_RETURN_IF_ERROR(adaptor->start(file));
  static Adaptor* only = nullptr;
  only = adaptor.get();
  std::atexit([] { only->finalize(); });
  return std::unique_ptr<MpiLibrary>(std::move(adaptor));
}

}  // namespace
}  // namespace fdl

// farandole.hpp wraps the C API in C++ objects with destructors, and throws its errors as exceptions. It is header-only
// and adds nothing else; arguments, errors and thread rules are those of farandole.h.
#pragma once

#include <farandole/farandole.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace fdl {
inline namespace api_0 {

// Carries a copy of what fdl_last_error() returned after a failed call; what() is its text.
class Error : public std::runtime_error {
 public:
  explicit Error(const fdl_error& error)
      : std::runtime_error(error.text),
        code(error.code),
        culprit_rank(error.culprit_rank),
        culprit_host(error.culprit_host),
        operation(error.operation),
        phase(error.phase),
        group(error.group) {}

  fdl_result code;
  int culprit_rank;
  std::string culprit_host;
  std::string operation;
  std::string phase;
  std::string group;
};

// Throws Error unless the result is FDL_OK. Call it in the thread of the failed call.
inline void check(fdl_result result) {
  if (result != FDL_OK) throw Error(*fdl_last_error());
}

// The dtype of a C++ type: bool, float, double and all integers. 16-bit and 8-bit floats have no C++ type here.
template <typename T>
constexpr fdl_dtype dtype_of() {
  if constexpr (std::is_same_v<T, bool>)
    return FDL_BOOL;
  else if constexpr (std::is_same_v<T, float>)
    return FDL_FLOAT32;
  else if constexpr (std::is_same_v<T, double>)
    return FDL_FLOAT64;
  else {
    static_assert(std::is_integral_v<T>, "give the dtype of this type yourself");
    constexpr fdl_dtype by_size[2][4] = {{FDL_UINT8, FDL_UINT16, FDL_UINT32, FDL_UINT64},
                                         {FDL_INT8, FDL_INT16, FDL_INT32, FDL_INT64}};
    constexpr int log2_size = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return by_size[std::is_signed_v<T>][log2_size];
  }
}

// A deleter for std::unique_ptr that calls a function of the C API.
template <auto end>
struct EndWith {
  template <typename T>
  void operator()(T* object) const {
    end(object);
  }
};

// The outcome of named operations that were submitted together.
class Handle {
 public:
  // Takes ownership.
  explicit Handle(fdl_handle* handle) : handle_(handle) {}
  bool done() const {
    int done = 0;
    check(fdl_poll(handle_.get(), &done));
    return done != 0;
  }
  // In nanoseconds; negative: no limit. Throws the operations' failure.
  void wait(int64_t timeout_ns = -1) const { check(fdl_wait_handle(handle_.get(), timeout_ns)); }
  fdl_handle* get() const { return handle_.get(); }

 private:
  std::unique_ptr<fdl_handle, EndWith<fdl_handle_free>> handle_;
};

// Named operations that are submitted together, and all run or all fail. A batch may be submitted again once its handle
// is done.
class Batch {
 public:
  // Adds an allreduce of `count` elements, in place. All ranks must use the same names, in any order.
  template <typename T>
  Batch& allreduce(std::string name, T* data, std::size_t count, fdl_reduce_op op = FDL_AVERAGE) {
    parts_.push_back(std::make_unique<Part>());
    Part& part = *parts_.back();
    part.name = std::move(name);
    part.shape = static_cast<int64_t>(count);
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.kind = FDL_NAMED_ALLREDUCE;
    operation.name = part.name.c_str();
    operation.input = {data, dtype_of<T>(), 1, &part.shape, 0, 0, nullptr};
    operation.output = data;
    operation.op = op;
    operations_.push_back(operation);
    return *this;
  }

  Handle submit(fdl_group* group) const {
    fdl_handle* handle = nullptr;
    check(fdl_submit(group, operations_.data(), operations_.size(), &handle));
    return Handle(handle);
  }

  // Submits and waits without a limit.
  void run(fdl_group* group) const { check(fdl_run(group, operations_.data(), operations_.size(), -1, nullptr)); }

 private:
  struct Part {
    std::string name;
    int64_t shape = 0;
  };
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<fdl_operation> operations_;
};

// An ordered communicator: every member calls the same collectives in the same order, from one thread at a time. Counts
// are those of the C functions of the same names, in elements.
class Comm {
 public:
  // Collective over the group.
  explicit Comm(fdl_group* group) {
    fdl_comm* made = nullptr;
    check(fdl_comm_create(group, &made));
    comm_.reset(made);
  }
  int rank() const { return fdl_comm_rank(comm_.get()); }
  int size() const { return fdl_comm_size(comm_.get()); }

  template <typename T>
  void allreduce(T* data, std::size_t count, fdl_reduce_op op = FDL_SUM) {
    check(fdl_allreduce(comm_.get(), data, data, count, dtype_of<T>(), op));
  }
  template <typename T>
  void broadcast(T* data, std::size_t count, int root = 0) {
    check(fdl_broadcast(comm_.get(), data, count, dtype_of<T>(), root));
  }
  template <typename T>
  void allgather(const T* input, T* output, std::size_t count) {
    check(fdl_allgather(comm_.get(), input, output, count, dtype_of<T>()));
  }
  template <typename T>
  void reduce_scatter(const T* input, T* output, std::size_t count, fdl_reduce_op op = FDL_SUM) {
    check(fdl_reduce_scatter(comm_.get(), input, output, count, dtype_of<T>(), op));
  }
  template <typename T>
  void alltoall(const T* input, T* output, std::size_t count) {
    check(fdl_alltoall(comm_.get(), input, output, count, dtype_of<T>()));
  }
  template <typename T>
  void send(const T* data, std::size_t count, int peer) {
    check(fdl_send(comm_.get(), data, count, dtype_of<T>(), peer));
  }
  template <typename T>
  void recv(T* data, std::size_t count, int peer) {
    check(fdl_recv(comm_.get(), data, count, dtype_of<T>(), peer));
  }
  void barrier() { check(fdl_barrier(comm_.get())); }
  // From any thread.
  void abort(const std::string& reason) { check(fdl_comm_abort(comm_.get(), reason.c_str())); }
  fdl_comm* get() const { return comm_.get(); }

 private:
  std::unique_ptr<fdl_comm, EndWith<fdl_comm_destroy>> comm_;
};

// A set of ranks. World::all() returns the group of all ranks.
class Group {
 public:
  // Collective over `ranks`, which are ranks of the world; their order is their order in the group.
  Group(fdl_world* world, const std::vector<int>& ranks) {
    fdl_group* made = nullptr;
    check(fdl_group_create(world, ranks.data(), ranks.size(), &made));
    group_.reset(made);
  }
  int rank() const { return fdl_group_rank(group_.get()); }
  int size() const { return fdl_group_size(group_.get()); }
  fdl_group* get() const { return group_.get(); }

 private:
  std::unique_ptr<fdl_group, EndWith<fdl_group_destroy>> group_;
};

// All ranks of the job. The constructor joins the job and blocks until all ranks are there; the destructor leaves it.
class World {
 public:
  explicit World(const fdl_world_options* options = nullptr) {
    fdl_world* made = nullptr;
    check(fdl_world_create(options, &made));
    world_.reset(made);
    facts_.struct_size = sizeof facts_;
    check(fdl_world_info(made, &facts_));
  }
  int rank() const { return facts_.rank; }
  int size() const { return facts_.size; }
  const fdl_world_facts& facts() const { return facts_; }
  // Belongs to the world.
  fdl_group* all() const { return fdl_group_all(world_.get()); }
  fdl_world* get() const { return world_.get(); }

 private:
  std::unique_ptr<fdl_world, EndWith<fdl_world_destroy>> world_;
  fdl_world_facts facts_{};
};

}  // namespace api_0
}  // namespace fdl

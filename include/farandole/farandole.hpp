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

// Copies the error that fdl_last_error() returns after a failed call. what() returns its text.
class Error : public std::runtime_error {
 public:
  // Copies the strings of `error`, which the next failure in this thread overwrites.
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
  // Takes ownership of a handle of fdl_submit or fdl_run.
  explicit Handle(fdl_handle* handle) : handle_(handle) {}
  // True if the operations have completed. Does not wait.
  bool done() const {
    int done = 0;
    check(fdl_poll(handle_.get(), &done));
    return done != 0;
  }
  // Waits for the outcome and throws it if it is a failure. timeout_ns < 0: no limit.
  void wait(int64_t timeout_ns = -1) const { check(fdl_wait_handle(handle_.get(), timeout_ns)); }
  // The same, for operations on devices whose results `stream` uses.
  void wait_on(void* stream, int64_t timeout_ns = -1) const {
    check(fdl_wait_handle_on(handle_.get(), timeout_ns, stream));
  }
  // The C object, which stays owned by this one.
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

  // Submits the operations and returns at once. Their tensors must stay in place until the handle is done.
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
  // This rank's number in the communicator.
  int rank() const { return fdl_comm_rank(comm_.get()); }
  // How many ranks the communicator has.
  int size() const { return fdl_comm_size(comm_.get()); }

  // In place: the reduction of all ranks' data, on every rank.
  template <typename T>
  void allreduce(T* data, std::size_t count, fdl_reduce_op op = FDL_SUM) {
    check(fdl_allreduce(comm_.get(), data, data, count, dtype_of<T>(), op));
  }
  // Copies rank `root`'s data to all ranks.
  template <typename T>
  void broadcast(T* data, std::size_t count, int root = 0) {
    check(fdl_broadcast(comm_.get(), data, count, dtype_of<T>(), root));
  }
  // The inputs of all ranks in rank order. count: of each input.
  template <typename T>
  void allgather(const T* input, T* output, std::size_t count) {
    check(fdl_allgather(comm_.get(), input, output, count, dtype_of<T>()));
  }
  // This rank's part of the reduction. count: of each output.
  template <typename T>
  void reduce_scatter(const T* input, T* output, std::size_t count, fdl_reduce_op op = FDL_SUM) {
    check(fdl_reduce_scatter(comm_.get(), input, output, count, dtype_of<T>(), op));
  }
  // Part r of input goes to rank r; part r of output comes from rank r. count: of each part.
  template <typename T>
  void alltoall(const T* input, T* output, std::size_t count) {
    check(fdl_alltoall(comm_.get(), input, output, count, dtype_of<T>()));
  }
  // Sends to rank `peer`, which calls recv.
  template <typename T>
  void send(const T* data, std::size_t count, int peer) {
    check(fdl_send(comm_.get(), data, count, dtype_of<T>(), peer));
  }
  // Receives from rank `peer`, which calls send.
  template <typename T>
  void recv(T* data, std::size_t count, int peer) {
    check(fdl_recv(comm_.get(), data, count, dtype_of<T>(), peer));
  }
  // Returns when all ranks have called it.
  void barrier() { check(fdl_barrier(comm_.get())); }
  // Ends the communicator on all ranks with FDL_ABORTED and `reason`. May be called from any thread.
  void abort(const std::string& reason) { check(fdl_comm_abort(comm_.get(), reason.c_str())); }
  // The C object, which stays owned by this one.
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
  // This rank's number in the group.
  int rank() const { return fdl_group_rank(group_.get()); }
  // How many ranks the group has.
  int size() const { return fdl_group_size(group_.get()); }
  // The C object, which stays owned by this one.
  fdl_group* get() const { return group_.get(); }

 private:
  std::unique_ptr<fdl_group, EndWith<fdl_group_destroy>> group_;
};

// All ranks of the job. The constructor joins the job and blocks until all ranks are there; the destructor leaves it.
class World {
 public:
  // NULL: all options come from the environment.
  explicit World(const fdl_world_options* options = nullptr) {
    fdl_world* made = nullptr;
    check(fdl_world_create(options, &made));
    world_.reset(made);
    facts_.struct_size = sizeof facts_;
    check(fdl_world_info(made, &facts_));
  }
  // This rank's number.
  int rank() const { return facts_.rank; }
  // How many ranks the job has.
  int size() const { return facts_.size; }
  // Rank, size, host, launcher and transports.
  const fdl_world_facts& facts() const { return facts_; }
  // The group of all ranks.
  fdl_group* all() const { return fdl_group_all(world_.get()); }
  // The C object, which stays owned by this one.
  fdl_world* get() const { return world_.get(); }
  // The world of the ranks that are left after a loss; this one has ended. See fdl_world_shrink.
  World shrink(const fdl_shrink_options* options = nullptr) {
    fdl_world* survivors = nullptr;
    check(fdl_world_shrink(get(), options, &survivors));
    return World(survivors);
  }

 private:
  explicit World(fdl_world* made) : world_(made) {
    facts_.struct_size = sizeof facts_;
    check(fdl_world_info(made, &facts_));
  }

  std::unique_ptr<fdl_world, EndWith<fdl_world_destroy>> world_;
  fdl_world_facts facts_{};
};

}  // namespace api_0
}  // namespace fdl

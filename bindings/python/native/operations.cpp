// Named operations: their submission, the handles that return their results, and outputs that the library
// allocates.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "arguments.h"
#include "exceptions.h"
#include "view.h"
#include "world.h"

namespace farandole_python {
namespace py = pybind11;

namespace {

constexpr int kMostDimensions = 64;

// Objects that must live until a submitted operation is done: its names and shapes, and the tensors in `keep`.
struct Submission {
  std::vector<fdl_operation> operations;
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<std::vector<int64_t>> splits;
  py::object keep;
};

std::vector<int64_t> integers(py::handle sequence, const char* name) {
  std::vector<int64_t> all;
  for (py::handle item : sequence) all.push_back(number_of<int64_t>(item, name));
  return all;
}

// The fields of an operation in Python, a named tuple that is created from these names and defaults. Each position is
// therefore defined once. `output_elements` is the size of the memory at `output`, which the core checks.
enum Field {
  kKind,
  kName,
  kInput,
  kDtype,
  kShape,
  kOutput,
  kOutputElements,
  kOp,
  kRoot,
  kPrescale,
  kPostscale,
  kSplits,
  kPriority,
  kPlace,
  kCompression,
  kFieldCount
};

py::tuple operation_fields() {
  py::tuple names = py::make_tuple("kind", "name", "input", "dtype", "shape", "output", "output_elements", "op", "root",
                                   "prescale", "postscale", "splits", "priority", "place", "compression");
  if (names.size() != kFieldCount) throw std::logic_error("operation_fields and Field differ");
  return names;
}

// The defaults of the fields after `name`, which describe an operation without tensors.
py::tuple operation_defaults() {
  return py::make_tuple(0, static_cast<int>(FDL_UINT8), py::tuple(), 0, 0, static_cast<int>(FDL_SUM), 0, 1.0, 1.0,
                        py::none(), 0, py::none(), 0);
}

void add_operation(Submission& submission, const py::tuple& fields) {
  if (fields.size() != kFieldCount)
    raise_error(FDL_INVALID_ARGUMENT,
                "an operation has " + std::to_string(kFieldCount) + " fields, not " + std::to_string(fields.size()));
  // The pointers in it refer to `submission`, whose vectors have enough capacity (submission_of), so nothing moves.
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.kind = static_cast<fdl_kind>(fields[kKind].cast<int>());
  operation.name = submission.names.emplace_back(name_of_operation(fields[kName])).c_str();
  operation.input.data = reinterpret_cast<void*>(fields[kInput].cast<uintptr_t>());
  operation.input.dtype = static_cast<fdl_dtype>(fields[kDtype].cast<int>());
  auto& shape = submission.shapes.emplace_back(integers(fields[kShape], "an entry of the shape"));
  operation.input.ndim = static_cast<int>(shape.size());
  operation.input.shape = shape.data();
  operation.output = reinterpret_cast<void*>(fields[kOutput].cast<uintptr_t>());
  if (operation.output) operation.output_elements = fields[kOutputElements].cast<size_t>();
  operation.op = static_cast<fdl_reduce_op>(fields[kOp].cast<int>());
  operation.root = number_of<int>(fields[kRoot], "root");
  operation.prescale = number_of<double>(fields[kPrescale], "prescale");
  operation.postscale = number_of<double>(fields[kPostscale], "postscale");
  if (!py::object(fields[kSplits]).is_none()) {
    auto& splits = submission.splits.emplace_back(integers(fields[kSplits], "an entry of splits"));
    operation.splits = splits.data();
    operation.splits_length = splits.size();
  }
  operation.priority = number_of<int>(fields[kPriority], "priority");
  operation.compression = static_cast<fdl_compression>(fields[kCompression].cast<int>());
  const Place place = Place::from_python(fields[kPlace]);
  operation.input.device_kind = place.kind;
  operation.input.device_index = place.index;
  operation.input.stream = place.stream;
  submission.operations.push_back(operation);
}

// Memory that the library allocated for a result. It is freed with the last array that refers to it.
class Output {
 public:
  Output(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  ~Output() { fdl_output_free(data_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  py::buffer_info buffer() const {
    return {data_, 1, py::format_descriptor<uint8_t>::format(), static_cast<py::ssize_t>(bytes_)};
  }

 private:
  void* data_;
  size_t bytes_;
};

// The same on a device, as an array of bytes. The operation that wrote it is ordered with the operation's stream.
class DeviceOutput {
 public:
  DeviceOutput(void* data, size_t bytes, Place place) : data_(data), bytes_(bytes), place_(place) {}
  ~DeviceOutput() { fdl_output_free(data_); }
  DeviceOutput(const DeviceOutput&) = delete;
  DeviceOutput& operator=(const DeviceOutput&) = delete;

  py::dict cuda_array_interface() const {
    py::dict facts;
    facts["shape"] = py::make_tuple(bytes_);
    facts["typestr"] = "|u1";
    facts["data"] = py::make_tuple(reinterpret_cast<uintptr_t>(data_), false);
    facts["strides"] = py::none();
    facts["version"] = 3;
    return facts;
  }
  py::tuple dlpack_device() const { return py::make_tuple(static_cast<int>(place_.kind), place_.index); }

 private:
  void* data_;
  size_t bytes_;
  Place place_;
};

class Handle;
// Handles that were released while their operation was in flight. Its tensors must live until it is done.
// Guarded by the GIL.
std::vector<std::unique_ptr<Handle>>& dropped() {
  // Leaked on purpose: at the exit of the process the interpreter may be gone before static objects are destroyed.
  static auto* handles = new std::vector<std::unique_ptr<Handle>>;
  return *handles;
}

class Handle {
 public:
  Handle(fdl_handle* handle, std::shared_ptr<Group> group, std::unique_ptr<Submission> submission)
      : handle_(handle),
        group_(std::move(group)),
        rank_count_(static_cast<size_t>(group_->size())),
        submission_(std::move(submission)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (handle_) fdl_handle_free(handle_);
  }

  // Releases a handle. One whose tensors are still in use moves to `dropped`.
  static void release(Handle* handle) {
    std::unique_ptr<Handle> owned(handle);
    if (!owned->is_over()) dropped().push_back(std::move(owned));
  }

  static void sweep() {
    // Called at each submission, so the list stays as short as what is in flight.
    std::erase_if(dropped(), [](const std::unique_ptr<Handle>& handle) { return handle->is_over(); });
  }

  bool done() const {
    int is_done = 0;
    return fdl_poll(handle_, &is_done) != FDL_OK || is_done;
  }

  // Whether the tensors may be reused: a stream waits for the operation, or the device has finished it.
  bool is_over() const {
    int is_done = 0;
    return waited_ || fdl_poll_device(handle_, &is_done) != FDL_OK || is_done;
  }

  // fdl_run has waited for the operation.
  void set_waited() { waited_ = true; }

  // Waits in parts and checks for signals between them, so that Ctrl-C interrupts the wait. Then the stream waits for
  // the results: that of the tensors, if there is none.
  void wait(double timeout_s, std::optional<uintptr_t> stream = std::nullopt) {
    using Clock = std::chrono::steady_clock;
    auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(timeout_s < 0 ? 0 : std::min(timeout_s, 1e9)));
    for (;;) {
      // The first part is short enough for Ctrl-C. A wait with a deadline ends its last part at the deadline.
      int64_t part = kBetweenSignalChecksNs;
      if (timeout_s >= 0) {
        int64_t left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
        part = std::clamp<int64_t>(left, 0, part);
      }
      // Without a switch of the GIL for an operation that is done: other threads would run in between.
      bool was_done = done();
      fdl_result result;
      if (was_done) {
        result = wait_once(-1, stream);
      } else {
        py::gil_scoped_release release_gil;
        result = wait_once(part, stream);
      }
      if (result != FDL_TIMEOUT || was_done) {
        waited_ = result != FDL_UNSUPPORTED;
        return check(result);
      }
      if (done()) continue;  // it has finished meanwhile: return its own result
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (timeout_s >= 0 && Clock::now() >= deadline) check(wait_once(0, stream));
    }
  }

  // (memory or None, shape, received splits or None) of operation `index`. Memory is None if the caller provided it.
  py::tuple output(size_t index) const {
    fdl_output returned{};
    returned.struct_size = sizeof returned;
    check(fdl_handle_output(handle_, index, &returned));
    py::tuple shape(static_cast<size_t>(returned.ndim));
    size_t count = 1;
    for (int i = 0; i < returned.ndim; ++i) {
      shape[static_cast<size_t>(i)] = returned.shape[i];
      count *= static_cast<size_t>(returned.shape[i]);
    }
    py::object splits = py::none();
    if (returned.received_splits) {
      py::tuple all(rank_count_);
      for (size_t i = 0; i < rank_count_; ++i) all[i] = returned.received_splits[i];
      splits = all;
    }
    // The array takes the ownership of the memory. A second call gets no data from the library.
    py::object memory = py::none();
    const fdl_operation& operation = submission_->operations.at(index);
    const size_t bytes = count * fdl_dtype_size(operation.input.dtype);
    const Place place{static_cast<fdl_device_kind>(operation.input.device_kind), operation.input.device_index,
                      operation.input.stream};
    if (!operation.output && returned.data) {
      memory = place.on_device()
                   ? py::cast(new DeviceOutput(returned.data, bytes, place), py::return_value_policy::take_ownership)
                   : py::cast(new Output(returned.data, bytes), py::return_value_policy::take_ownership);
    }
    return py::make_tuple(memory, shape, splits);
  }

  double error_bound(size_t index) const {
    fdl_output returned{};
    returned.struct_size = sizeof returned;
    check(fdl_handle_output(handle_, index, &returned));
    return returned.error_bound;
  }

  int last_joined() const {
    fdl_output returned{};
    returned.struct_size = sizeof returned;
    check(fdl_handle_output(handle_, 0, &returned));
    return returned.last_joined;
  }

 private:
  fdl_result wait_once(int64_t timeout_ns, std::optional<uintptr_t> stream) const {
    return stream ? fdl_wait_handle_on(handle_, timeout_ns, reinterpret_cast<void*>(*stream))
                  : fdl_wait_handle(handle_, timeout_ns);
  }

  fdl_handle* handle_;
  std::shared_ptr<Group> group_;
  size_t rank_count_;
  std::unique_ptr<Submission> submission_;
  bool waited_ = false;  // the operation has ended, and a stream waits for it
};

// The object that Python holds. It moves the Handle to `dropped` if it is destroyed before the operation is done.
class HandleHolder {
 public:
  explicit HandleHolder(Handle* handle) : handle_(handle) {}
  ~HandleHolder() { Handle::release(handle_); }
  HandleHolder(const HandleHolder&) = delete;
  HandleHolder& operator=(const HandleHolder&) = delete;
  Handle& get() const { return *handle_; }

 private:
  Handle* handle_;
};

std::unique_ptr<Submission> submission_of(const py::sequence& operations, py::object keep) {
  auto submission = std::make_unique<Submission>();
  size_t count = operations.size();
  submission->operations.reserve(count);
  submission->names.reserve(count);  // the operations refer to these: they must not move
  submission->shapes.reserve(count);
  submission->splits.reserve(count);
  for (py::handle fields : operations) add_operation(*submission, fields.cast<py::tuple>());
  submission->keep = std::move(keep);
  return submission;
}

std::unique_ptr<HandleHolder> submit(const std::shared_ptr<Group>& group, const py::sequence& operations,
                                     py::object keep) {
  Handle::sweep();
  fdl_group* inside = group->get();
  auto submission = submission_of(operations, std::move(keep));
  // fdl_submit() does not block, so the GIL is kept: releasing it would cost more than the call.
  fdl_handle* handle = nullptr;
  check(fdl_submit(inside, submission->operations.data(), submission->operations.size(), &handle));
  return std::make_unique<HandleHolder>(new Handle(handle, group, std::move(submission)));
}

// Waits like Handle::wait until the operations are done, and raises their failure.
void finish_run(const HandleHolder& handle, fdl_result result) {
  if (result == FDL_TIMEOUT) {
    // It is the time limit of the wait, or the operation has failed with it. In the first case the operation may have
    // ended meanwhile. In all cases wait() returns the operation's own result.
    if (!handle.get().done() && PyErr_CheckSignals() != 0) throw py::error_already_set();
    return handle.get().wait(-1);
  }
  check(result);
}

std::unique_ptr<HandleHolder> run(const std::shared_ptr<Group>& group, const py::sequence& operations,
                                  py::object keep) {
  fdl_group* inside = group->get();
  const Users::User user(group->users());
  auto submission = submission_of(operations, std::move(keep));
  const fdl_operation* first = submission->operations.data();
  size_t count = submission->operations.size();
  fdl_handle* handle = nullptr;
  fdl_result result;
  {
    py::gil_scoped_release release_gil;
    result = fdl_run(inside, first, count, kBetweenSignalChecksNs, &handle);
  }
  // Without a handle nothing was submitted.
  if (!handle) raise_last_error();
  auto holder = std::make_unique<HandleHolder>(new Handle(handle, group, std::move(submission)));
  if (result == FDL_OK) holder->get().set_waited();
  finish_run(*holder, result);
  return holder;
}

// (group, name, pointer, dtype, shape, output pointer, op, prescale, postscale, keep): one blocking allreduce for
// small steps of a training loop. It creates no intermediate objects. The caller guarantees that the output has the
// input's shape.
PyObject* allreduce(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  try {
    if (count != 10) raise_error(FDL_INVALID_ARGUMENT, "allreduce takes 10 arguments");
    auto& group = *py::handle(arguments[0]).cast<Group*>();
    // On the stack, as the operation: fdl_run() copies what must outlive the call.
    int64_t shape[kMostDimensions];
    Py_ssize_t ndim = PyTuple_Check(arguments[4]) ? PyTuple_GET_SIZE(arguments[4]) : -1;
    if (ndim < 0 || ndim > kMostDimensions) raise_error(FDL_INVALID_ARGUMENT, "the shape is no tuple of up to 64");
    for (Py_ssize_t i = 0; i < ndim; ++i) shape[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(arguments[4], i));
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.kind = FDL_NAMED_ALLREDUCE;
    operation.name = borrowed_name(arguments[1]);
    operation.input.data = PyLong_AsVoidPtr(arguments[2]);
    operation.input.dtype = static_cast<fdl_dtype>(PyLong_AsLong(arguments[3]));
    operation.input.ndim = static_cast<int>(ndim);
    operation.input.shape = shape;
    operation.output = PyLong_AsVoidPtr(arguments[5]);
    operation.op = static_cast<fdl_reduce_op>(PyLong_AsLong(arguments[6]));
    operation.prescale = PyFloat_AsDouble(arguments[7]);
    operation.postscale = PyFloat_AsDouble(arguments[8]);
    // One check for all conversions above. Their results after an error are not used.
    if (PyErr_Occurred()) throw py::error_already_set();
    fdl_group* inside = group.get();
    const Users::User user(group.users());
    fdl_handle* handle = nullptr;
    fdl_result result;
    Py_BEGIN_ALLOW_THREADS;
    result = fdl_run(inside, &operation, 1, kBetweenSignalChecksNs, &handle);
    Py_END_ALLOW_THREADS;
    if (!handle) raise_last_error();
    if (result == FDL_OK) {
      fdl_handle_free(handle);
    } else {
      // The operation may be in flight after the first part of the wait, so its tensors must be kept.
      auto submission = std::make_unique<Submission>();
      submission->keep = py::reinterpret_borrow<py::object>(arguments[9]);
      finish_run(HandleHolder(new Handle(handle, py::handle(arguments[0]).cast<std::shared_ptr<Group>>(),
                                         std::move(submission))),
                 result);
    }
    Py_RETURN_NONE;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyMethodDef allreduce_method = {"allreduce", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(allreduce)),
                                METH_FASTCALL, "One blocking allreduce by name."};

// (compression, address of the input, address of the output, elements): returns the bound of the error.
double compression_round_trip(int compression, uintptr_t input, uintptr_t output, size_t count) {
  double bound = 0;
  fdl_result result;
  {
    py::gil_scoped_release release;
    result =
        fdl_compression_round_trip(static_cast<fdl_compression>(compression), reinterpret_cast<const float*>(input),
                                   reinterpret_cast<float*>(output), count, &bound);
  }
  check(result);
  return bound;
}

std::unique_ptr<HandleHolder> join(const std::shared_ptr<Group>& group) {
  fdl_handle* handle = nullptr;
  check(fdl_join(group->get(), &handle));
  return std::make_unique<HandleHolder>(new Handle(handle, group, std::make_unique<Submission>()));
}

}  // namespace

void bind_operations(py::module_& module) {
  py::class_<Output>(module, "Output", py::buffer_protocol()).def_buffer(&Output::buffer);
  py::class_<DeviceOutput>(module, "DeviceOutput")
      .def_property_readonly("__cuda_array_interface__", &DeviceOutput::cuda_array_interface)
      .def("__dlpack_device__", &DeviceOutput::dlpack_device);
  py::class_<HandleHolder>(module, "Handle")
      .def("done", [](const HandleHolder& handle) { return handle.get().done(); })
      .def(
          "wait",
          [](const HandleHolder& handle, double timeout_s, std::optional<uintptr_t> stream) {
            handle.get().wait(timeout_s, stream);
          },
          py::arg("timeout_s") = -1.0, py::arg("stream") = py::none())
      .def("done_on_device", [](const HandleHolder& handle) { return handle.get().is_over(); })
      .def("output", [](const HandleHolder& handle, size_t index) { return handle.get().output(index); })
      .def("error_bound", [](const HandleHolder& handle, size_t index) { return handle.get().error_bound(index); })
      .def("last_joined", [](const HandleHolder& handle) { return handle.get().last_joined(); });
  module.attr("OPERATION_FIELDS") = operation_fields();
  module.attr("OPERATION_DEFAULTS") = operation_defaults();
  module.def("submit", &submit);
  module.def("run", &run);
  module.attr("allreduce") = py::reinterpret_steal<py::object>(PyCFunction_New(&allreduce_method, nullptr));
  module.def("compression_round_trip", &compression_round_trip);
  module.def("join", &join);
}

}  // namespace farandole_python

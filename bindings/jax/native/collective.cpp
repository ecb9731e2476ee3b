// Submits a collective, and ends the future of XLA with its outcome.
#include "collective.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "completions.h"
#include "failures.h"
#include "groups.h"

namespace farandole_jax {
namespace {

ffi::ErrorCode xla_code(fdl_result code) {
  switch (code) {
    case FDL_INVALID_ARGUMENT:
      return ffi::ErrorCode::kInvalidArgument;
    case FDL_MISMATCH:
    case FDL_NOT_INITIALIZED:
      return ffi::ErrorCode::kFailedPrecondition;
    case FDL_PEER_LOST:
    case FDL_TRANSPORT:
      return ffi::ErrorCode::kUnavailable;
    case FDL_TIMEOUT:
      return ffi::ErrorCode::kDeadlineExceeded;
    case FDL_ABORTED:
      return ffi::ErrorCode::kAborted;
    case FDL_SHUT_DOWN:
      return ffi::ErrorCode::kCancelled;
    case FDL_UNSUPPORTED:
      return ffi::ErrorCode::kUnimplemented;
    case FDL_RESOURCE:
      return ffi::ErrorCode::kResourceExhausted;
    case FDL_AUTHENTICATION:
      return ffi::ErrorCode::kUnauthenticated;
    default:
      return ffi::ErrorCode::kInternal;
  }
}

// TensorFlow makes an exception of each code. Programs written for Horovod expect these four classes, as of the ops.
ffi::ErrorCode tensorflow_code(fdl_result code) {
  switch (code) {
    case FDL_INVALID_ARGUMENT:
      return ffi::ErrorCode::kInvalidArgument;
    case FDL_MISMATCH:
    case FDL_NOT_INITIALIZED:
      return ffi::ErrorCode::kFailedPrecondition;
    case FDL_UNSUPPORTED:
      return ffi::ErrorCode::kAborted;
    default:
      return ffi::ErrorCode::kUnknown;
  }
}

void fail(ffi::Promise& promise, Framework framework, Failure failure) {
  const ffi::ErrorCode code =
      framework == Framework::kTensorFlow ? tensorflow_code(failure.code) : xla_code(failure.code);
  ffi::Error error(code, failure.text);
  Failures::instance().add(std::move(failure));
  promise.SetError(std::move(error));
}

std::string text_of(std::span<const int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// What completes a submitted collective. It owns itself, and ends with the callback of its handle.
struct Flight {
  ffi::Promise promise;
  fdl_handle* handle = nullptr;
  std::vector<Target> targets;
  std::string name;  // of the first operation
  Framework framework = Framework::kJax;

  // Copies one result that the library has allocated. False, and `failure`, if it does not fit the compiled program.
  bool deliver(std::size_t index, Failure& failure) const {
    fdl_output output{};
    output.struct_size = sizeof output;
    if (fdl_handle_output(handle, index, &output) != FDL_OK) {
      failure = Failure::last();
      return false;
    }
    const std::unique_ptr<void, void (*)(void*)> memory(output.data, &fdl_output_free);
    const Target& target = targets[index];
    const std::span<const int64_t> shape(output.shape, static_cast<std::size_t>(output.ndim));
    if (!std::ranges::equal(shape, target.shape)) {
      failure = Failure::of(FDL_MISMATCH, name + ": the result has the shape " + text_of(shape) +
                                              ", but the program was compiled for " + text_of(target.shape) +
                                              "; in compiled functions all ranks contribute the same number of rows, "
                                              "and a world of another size needs jax.clear_caches()");
      return false;
    }
    if (target.bytes > 0) std::memcpy(target.data, memory.get(), target.bytes);
    return true;
  }

  void finish() {
    Failure failure;
    // Does not wait: the handle is done.
    if (fdl_wait_handle(handle, 0) != FDL_OK) failure = Failure::last();
    for (std::size_t i = 0; i < targets.size() && failure.code == FDL_OK; ++i) deliver(i, failure);
    fdl_handle_free(handle);
    if (failure.code == FDL_OK) return promise.SetAvailable();
    fail(promise, framework, std::move(failure));
  }
};

const char* text_of_missing_group(Framework framework) {
  if (framework == Framework::kTensorFlow)
    return ": this function was compiled for a world or a process set that has ended; make the tf.function again";
  return ": the group of this compiled program does not exist; call farandole.jax.init(), and add process sets again, "
         "before it runs";
}

// The flight whose callback fdl_handle_notify may run before it returns, in a thread of XLA.
thread_local const Flight* notifying = nullptr;

void finish(void* context) {
  auto* const flight = static_cast<Flight*>(context);
  if (flight == notifying) {
    notifying = nullptr;
    return std::unique_ptr<Flight>(flight)->finish();
  }
  Completions::instance().run([flight] { std::unique_ptr<Flight>(flight)->finish(); });
}

void complete_later(std::unique_ptr<Flight> flight) {
  fdl_handle* const handle = flight->handle;
  notifying = flight.get();
  static_cast<void>(fdl_handle_notify(handle, &finish, flight.release()));
  notifying = nullptr;
}

}  // namespace

void fail(ffi::Promise promise, Framework framework, fdl_result code, std::string text) {
  fail(promise, framework, Failure::of(code, std::move(text)));
}

void Collective::add(const fdl_tensor& input, void* output, std::size_t output_bytes,
                     std::span<const int64_t> output_shape) {
  fdl_operation& operation = operations_.emplace_back();
  fdl_operation_init(&operation);
  operation.kind = attributes_.kind;
  operation.input = input;
  operation.op = attributes_.op;
  operation.root = attributes_.root;
  operation.prescale = attributes_.prescale;
  operation.postscale = attributes_.postscale;
  operation.priority = attributes_.priority;
  if (!attributes_.splits.empty()) {
    operation.splits = attributes_.splits.data();
    operation.splits_length = attributes_.splits.size();
  }
  if (writes_in_place()) {
    operation.output = output;
  } else {
    targets_.push_back({output, output_bytes, {output_shape.begin(), output_shape.end()}});
  }
}

bool Collective::set_names(std::string& problem) {
  std::string_view rest = attributes_.names;
  if (device_ > 0) other_names_.reserve(operations_.size());
  for (fdl_operation& operation : operations_) {
    const std::size_t end = rest.find('\0');
    if (end == std::string_view::npos || end == 0) {
      problem = "a call has fewer names than operations";
      return false;
    }
    operation.name = rest.data();
    if (device_ > 0) {
      std::string name = std::string(rest.substr(0, end)) + ".device" + std::to_string(device_);
      operation.name = other_names_.emplace_back(std::move(name)).c_str();
    }
    rest.remove_prefix(end + 1);
  }
  return true;
}

void Collective::start(const ffi::Promise& promise) {
  std::string problem;
  const Framework framework = attributes_.framework;
  if (!set_names(problem)) return farandole_jax::fail(promise, framework, FDL_INTERNAL, std::move(problem));
  auto flight = std::make_unique<Flight>();
  flight->promise = promise;
  flight->targets = std::move(targets_);
  flight->name = operations_.front().name;
  flight->framework = framework;
  const fdl_result result = Groups::instance().with(attributes_.group, [&](fdl_group* group) {
    if (group == nullptr) return FDL_NOT_INITIALIZED;
    return fdl_submit(group, operations_.data(), operations_.size(), &flight->handle);
  });
  if (result == FDL_OK) {
    complete_later(std::move(flight));
  } else if (result == FDL_NOT_INITIALIZED) {
    fail(flight->promise, framework, Failure::of(result, flight->name + text_of_missing_group(framework)));
  } else {
    Failure failure = Failure::last();
    if (result == FDL_INVALID_ARGUMENT && failure.text.find("is in flight already") != std::string::npos) {
      failure.text +=
          "; in a compiled function each call needs a name of its own, or a token that orders it after the other, and "
          "a nested jit that is called twice is one call with one name";
    }
    fail(flight->promise, framework, std::move(failure));
  }
}

}  // namespace farandole_jax

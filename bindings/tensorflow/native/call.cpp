// Runs collectives for TensorFlow.
#include "call.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "data_types.h"
#include "failures.h"

namespace farandole_tensorflow {

namespace {

// How long a kernel's thread waits for its own operation, before another thread completes it: longer than a small
// collective takes on one host, and short beside the hand-off to another thread, which costs about as much.
constexpr int64_t kSoonNs = 200'000;

// Iterations of a loop overlap, ten by default, and may overtake each other, so each has names of its own. More names
// would only grow the memory of known names: when a number comes again, the iteration that had it before has ended.
constexpr int64_t kIterationNames = 64;

// Calls that have begun and not ended. A thread waits for its operation only while there is no other, because the
// others could otherwise start meanwhile: the ops of a graph overlap.
std::atomic<int> calls_in_flight{0};

// A callback of the library must not wait. TensorFlow may run the next kernels inside it.
thread_local bool is_in_callback = false;

void free_output(void* data, size_t, void*) { fdl_output_free(data); }

}  // namespace

CollectiveKernel::~CollectiveKernel() { delete spare.load(); }

// `spare` is one slot: of two runs at a time the second finds it empty and makes a call of its own. The exchanges order
// the former run's writes to the call before this run's reads.
void Call::run(CollectiveKernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  Call* call = kernel.spare.exchange(nullptr);
  if (call == nullptr) call = new Call(kernel);
  call->context_ = context;
  call->done_.take(done);
  const bool is_alone = calls_in_flight.fetch_add(1) == 0 && !is_in_callback;
  if (!call->prepare()) return call->end();
  if (is_alone && call->finished_soon()) return call->finish();
  // From here on the call belongs to the thread that completes it: it may be gone when this function returns.
  fdl_handle_notify(call->handle_, &Call::when_done, call);
}

// Submits the operation. False if the op has failed.
bool Call::prepare() {
  if (!read_inputs() || !allocate_outputs()) return false;
  // Holds the table of process sets until the end of this function: no thread destroys the group while it is used.
  const UsedProcessSet set(kernel_.attributes.process_set);
  if (set.get() == nullptr) return reject(set.absence().code, set.absence().text);
  if (set.get()->group == nullptr)
    return reject(FDL_INVALID_ARGUMENT, "Rank " + std::to_string(set.facts().rank) +
                                            " is not a member of the provided process set " +
                                            std::to_string(set.get()->id) + ".");
  rank_count_ = set.get()->size;
  if (!check(*set.get())) return false;
  if (submit(*set.get()) == FDL_OK) return true;
  fail_with_last_error(context_);
  return false;
}

bool Call::read_inputs() {
  tensors_.clear();
  dimensions_.clear();
  // A join and a barrier have no tensors. Alltoall has its splits as a second one.
  const size_t count = kernel_.collective.results == Results::kExchanged ? 2 : kernel_.attributes.names.size();
  if (kernel_.collective.results == Results::kNone || kernel_.collective.is_join) return true;
  for (size_t i = 0; i < count; ++i) {
    Status status;
    TF_Tensor* tensor = nullptr;
    tensorflow().GetInput(context_, static_cast<int>(i), &tensor, status.get());
    if (!status.ok()) {
      fail(context_, status);
      return false;
    }
    // Pointers into TensorFlow's tensor, which the context keeps.
    tensors_.push_back({tensorflow().TensorType(tensor), tensorflow().TensorData(tensor),
                        tensorflow().TensorByteSize(tensor), tensorflow().NumDims(tensor)});
    for (int d = 0; d < tensors_.back().ndim; ++d) dimensions_.push_back(tensorflow().Dim(tensor, d));
    // TensorFlow keeps the input until the op is done. Its memory can become the output only without this reference.
    tensorflow().DeleteTensor(tensor);
  }
  return true;
}

// Describes each operation, and gives results of the input's shape their memory.
bool Call::allocate_outputs() {
  const Attributes& attributes = kernel_.attributes;
  operations_.clear();
  const int64_t iteration = tensorflow().GetIterId(context_) % kIterationNames;  // 0 outside of loops
  // Before the first pointer to one of them is taken: a later resize would move them.
  if (iteration > 0) names_.resize(attributes.names.size());
  const int64_t* shape = dimensions_.data();
  for (size_t i = 0; i < attributes.names.size(); ++i) {
    fdl_operation& operation = operations_.emplace_back();
    fdl_operation_init(&operation);
    operation.kind = kernel_.collective.kind;
    operation.name = name_of(i, iteration);
    operation.op = attributes.op;
    operation.prescale = attributes.prescale;
    operation.postscale = attributes.postscale;
    if (tensors_.empty()) continue;
    const Tensor& tensor = tensors_[i];
    operation.input.data = tensor.data;
    operation.input.dtype = dtype_of(tensor.type);
    operation.input.ndim = tensor.ndim;
    operation.input.shape = shape;
    if (kernel_.collective.results == Results::kInPlace) {
      // The memory of the input if no other op needs it, so that the library reduces in place; else new memory.
      const int index = static_cast<int>(i);
      int forwarded = -1;
      Status status;
      TF_Tensor* output = tensorflow().ForwardInputOrAllocateOutput(context_, &index, 1, index, shape, tensor.ndim,
                                                                    &forwarded, status.get());
      if (!status.ok()) {
        fail(context_, status);
        return false;
      }
      operation.output = tensorflow().TensorData(output);
      operation.output_elements = tensor.bytes / fdl_dtype_size(operation.input.dtype);
      tensorflow().DeleteTensor(output);  // TensorFlow has its own reference
    }
    shape += tensor.ndim;
  }
  return true;
}

// Valid until the call ends.
const char* Call::name_of(size_t index, int64_t iteration) {
  const std::string& name = kernel_.attributes.names[index];
  if (iteration == 0) return name.c_str();
  return (names_[index] = name + "#" + std::to_string(iteration)).c_str();
}

// Checks what the library cannot know, in the words of the contract.
bool Call::check(const ProcessSet& set) {
  const Collective& collective = kernel_.collective;
  const bool has_rows = collective.results == Results::kAllocated || collective.results == Results::kExchanged;
  for (size_t i = 0; has_rows && i < operations_.size(); ++i) {
    if (operations_[i].input.ndim > 0) continue;
    if (collective.kind == FDL_NAMED_REDUCE_SCATTER)
      return reject(FDL_MISMATCH, "Reducescatter does not support scalar inputs; reshape the tensor to one row");
    return reject(FDL_MISMATCH, std::string(operations_[i].name) +
                                    ": a tensor without dimensions has no rows; use tf.expand_dims(tensor, 0)");
  }
  if (collective.kind == FDL_NAMED_BROADCAST) {
    // Programs name the root by its rank in the world, the library by its rank in the group.
    int root = 0;
    while (root < set.size && fdl_group_world_rank(set.group, root) != kernel_.attributes.root_rank) ++root;
    if (root == set.size)
      return reject(FDL_INVALID_ARGUMENT, "broadcast received invalid root rank " +
                                              std::to_string(kernel_.attributes.root_rank) +
                                              " for provided process set " + std::to_string(set.id) + ".");
    for (fdl_operation& operation : operations_) operation.root = root;
  }
  return collective.results != Results::kExchanged || check_splits(set);
}

bool Call::check_splits(const ProcessSet& set) {
  const int64_t rows = dimensions_[0];
  const Tensor& given = tensors_[1];
  // The caller that gives no splits passes an empty tensor: an op has always the same inputs.
  const auto count = static_cast<int>(given.bytes / sizeof(int32_t));
  splits_.clear();
  if (count == 0) {
    if (rows % set.size == 0) return true;
    return reject(FDL_INVALID_ARGUMENT, "splits not provided, but first dimension of tensor (" + std::to_string(rows) +
                                            ") is not divisible by the number of workers (" + std::to_string(set.size) +
                                            ").");
  }
  if (count != set.size)
    return reject(FDL_INVALID_ARGUMENT, "Number of entries in splits (" + std::to_string(count) +
                                            ") does not equal number of workers (" + std::to_string(set.size) + ").");
  int64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    splits_.push_back(given.element(i));
    if (splits_.back() < 0) return reject(FDL_INVALID_ARGUMENT, "splits has a negative entry.");
    sum += splits_.back();
  }
  if (sum > rows)
    return reject(FDL_INVALID_ARGUMENT, "Sum of splits entries (" + std::to_string(sum) +
                                            ") is greater than the first dimension of tensor (" + std::to_string(rows) +
                                            ").");
  operations_[0].splits = splits_.data();
  operations_[0].splits_length = splits_.size();
  return true;
}

fdl_result Call::submit(const ProcessSet& set) {
  if (kernel_.collective.is_join) return fdl_join(set.group, &handle_);
  return fdl_submit(set.group, operations_.data(), operations_.size(), &handle_);
}

// Fails the op. Always false.
bool Call::reject(fdl_result code, const std::string& text) {
  fail(context_, code, text.c_str());
  return false;
}

// Waits a short time, in which this thread may make the progress itself: no other thread has to wake up.
bool Call::finished_soon() {
  int is_done = 0;
  // A failure, also of the time limit, is not one of the operation: fdl_poll says whether that has ended.
  fdl_wait_handle(handle_, kSoonNs);
  return fdl_poll(handle_, &is_done) == FDL_OK && is_done != 0;
}

void Call::when_done(void* call) {
  // Nested where TensorFlow runs a kernel inside of the completion and that kernel completes at once.
  const bool was_in_callback = std::exchange(is_in_callback, true);
  static_cast<Call*>(call)->finish();
  is_in_callback = was_in_callback;
}

// The operation is done: its results or its failure go to TensorFlow.
void Call::finish() {
  if (fdl_wait_handle(handle_, 0) == FDL_OK) {
    deliver_results();
  } else {
    fail_with_last_error(context_);
  }
  fdl_handle_free(std::exchange(handle_, nullptr));
  end();
}

bool Call::deliver_results() {
  if (kernel_.collective.results == Results::kLastJoined) {
    fdl_output output{};
    output.struct_size = sizeof output;
    if (fdl_handle_output(handle_, 0, &output) != FDL_OK) return fail_with_last_error(context_), false;
    const int64_t last = output.last_joined;
    return deliver_number(0, &last, 1, false);
  }
  if (kernel_.collective.results == Results::kInPlace || kernel_.collective.results == Results::kNone) return true;
  for (size_t i = 0; i < operations_.size(); ++i)
    if (!deliver(i)) return false;
  return true;
}

// Gives TensorFlow the memory that the library has allocated, without a copy.
bool Call::deliver(size_t index) {
  fdl_output output{};
  output.struct_size = sizeof output;
  if (fdl_handle_output(handle_, index, &output) != FDL_OK) return fail_with_last_error(context_), false;
  const TF_DataType type = tensors_[index].type;
  size_t bytes = fdl_dtype_size(operations_[index].input.dtype);
  for (int i = 0; i < output.ndim; ++i) bytes *= static_cast<size_t>(output.shape[i]);
  Status status;
  TF_Tensor* tensor = nullptr;
  if (output.data != nullptr && bytes != 0) {
    // From here on the tensor owns the memory, also if SetOutput fails.
    tensor = tensorflow().NewTensor(type, output.shape, output.ndim, output.data, bytes, &free_output, nullptr);
    tensorflow().SetOutput(context_, static_cast<int>(index), tensor, status.get());
  } else {
    // An empty result has no memory to pass on.
    fdl_output_free(output.data);
    tensor = tensorflow().AllocateOutput(context_, static_cast<int>(index), type, output.shape, output.ndim, bytes,
                                         status.get());
  }
  if (tensor != nullptr) tensorflow().DeleteTensor(tensor);
  if (!status.ok()) return fail(context_, status), false;
  return output.received_splits == nullptr || deliver_number(1, output.received_splits, rank_count_, true);
}

// An int32 output: a vector, or one number without dimensions.
bool Call::deliver_number(int output, const int64_t* values, int count, bool is_vector) {
  const int64_t shape[] = {count};
  Status status;
  TF_Tensor* tensor = tensorflow().AllocateOutput(context_, output, TF_INT32, shape, is_vector ? 1 : 0,
                                                  static_cast<size_t>(count) * sizeof(int32_t), status.get());
  if (!status.ok()) return fail(context_, status), false;
  auto* numbers = static_cast<int32_t*>(tensorflow().TensorData(tensor));
  std::transform(values, values + count, numbers, [](int64_t value) { return static_cast<int32_t>(value); });
  tensorflow().DeleteTensor(tensor);
  return true;
}

// Returns the memory to the kernel before the completion, which may delete the kernel.
void Call::end() {
  Completion done = std::move(done_);
  // Another run may take this call from the slot at once, so that no member is used below. A call that was in the slot
  // already is one too many.
  delete kernel_.spare.exchange(this);
  calls_in_flight.fetch_sub(1);
  done();
}

}  // namespace farandole_tensorflow

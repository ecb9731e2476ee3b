// One run of a collective's kernel: from TensorFlow's inputs through a submission to TensorFlow's outputs.
#pragma once

#include <farandole/farandole.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "attributes.h"
#include "completion.h"
#include "process_sets.h"

namespace farandole_tensorflow {

class Call;

// How the results of a collective reach TensorFlow.
enum class Results {
  kInPlace,    // memory of TensorFlow, of the input's shape: that of the input itself where it is free
  kAllocated,  // memory that farandole has allocated, because only the ranks together know its size
  kExchanged,  // the same, and a second output with the rows of each rank
  kLastJoined,
  kNone,
};

// One row a collective.
struct Collective {
  fdl_kind kind;
  bool is_join;
  Results results;
};

// The kernel of one node. Several threads may run it at a time.
struct CollectiveKernel {
  CollectiveKernel(const Collective& one, Attributes its) : collective(one), attributes(std::move(its)) {}
  ~CollectiveKernel();

  const Collective& collective;
  const Attributes attributes;
  std::atomic<Call*> spare{nullptr};  // the last call that has ended, whose memory the next one uses
};

// Lifetime: run() takes a call from the kernel, or makes one, and end() returns it. Between the two, one thread at a
// time uses it: the kernel's thread until the operation is submitted and notified, then the thread that completes it.
// TensorFlow keeps the context with its inputs and outputs until the completion has been called.
class Call {
 public:
  // Runs the kernel once, and calls the completion when the operation is done: often before this returns.
  static void run(CollectiveKernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);

 private:
  struct Tensor {
    TF_DataType type;
    void* data;
    size_t bytes;
    int ndim;
    int64_t element(int index) const { return static_cast<const int32_t*>(data)[index]; }
  };

  explicit Call(CollectiveKernel& kernel) : kernel_(kernel) {}
  // Each of these returns false if it has failed the op. The caller then ends the call.
  bool prepare();
  bool read_inputs();
  bool allocate_outputs();
  bool check(const ProcessSet& set);
  bool check_splits(const ProcessSet& set);
  const char* name_of(size_t index, int64_t iteration);
  fdl_result submit(const ProcessSet& set);
  bool reject(fdl_result code, const std::string& text);
  bool finished_soon();
  void finish();
  // Only once the operation is done.
  bool deliver_results();
  bool deliver(size_t index);
  bool deliver_number(int output, const int64_t* values, int count, bool is_vector);
  void end();
  static void when_done(void* call);

  CollectiveKernel& kernel_;
  TF_OpKernelContext* context_ = nullptr;
  Completion done_;
  fdl_handle* handle_ = nullptr;
  int rank_count_ = 0;
  // These keep their capacity between calls, so that a kernel allocates nothing after its first run.
  std::vector<Tensor> tensors_;
  std::vector<int64_t> dimensions_;  // of all tensors, one after another
  std::vector<int64_t> splits_;
  std::vector<std::string> names_;  // those of an iteration of a loop
  std::vector<fdl_operation> operations_;

  friend struct CollectiveKernel;
};

}  // namespace farandole_tensorflow

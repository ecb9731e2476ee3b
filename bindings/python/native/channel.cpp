// Channel: the base of a torch.distributed process group: ordered collectives and tagged messages, from any thread.
//
// It takes addresses and counts; `keep` keeps their owners alive. Failures are raised in the waiting thread.
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include "collective_queue.h"
#include "exceptions.h"
#include "mailbox.h"
#include "view.h"
#include "world.h"

namespace farandole_python {
namespace py = pybind11;

namespace {

// A forked child lacks the threads, and its mutexes may be in any state: it must not use inherited objects.
std::atomic<int> generation{0};

class Channel;

// The Python object of an operation in flight. The first thread that holds the GIL afterwards drops its `keep`.
class Pending {
 public:
  Pending(Jobs& jobs, std::shared_ptr<Job> job, std::shared_ptr<Channel> channel)
      : jobs_(&jobs), job_(std::move(job)), channel_(std::move(channel)) {}

  bool done() const;
  void wait() const;
  // Only once done. Work that is queued on the stream from now on follows the collective on the device.
  void order_before(std::uintptr_t stream) const;
  // Whether the device has finished it, too.
  bool done_on_device() const;
  // Waits for the rest of the caller's time; then raises TimeoutError, and the operation stays in flight.
  void wait_for(double left_s, double given_s) const;
  // The failure as an exception object, or None. Call it only once done.
  py::object failure() const;
  void then(py::function function) const;
  // Withdraws the function of then(). False if it has been called or is about to be called, or if there are several.
  bool withdraw() const;
  int source() const { return static_cast<const Message&>(*job_).source; }
  // The contents that the caller must copy to the device of a message, once done.
  py::bytes kept() const {
    const auto& message = static_cast<const Message&>(*job_);
    return py::bytes(reinterpret_cast<const char*>(message.kept.data()), message.kept.size());
  }

 private:
  void check_process() const;
  bool wait_until(int64_t moment_ns) const;
  void raise_outcome() const;
  [[noreturn]] void raise_timeout(double given_s) const;

  Jobs* jobs_;
  std::shared_ptr<Job> job_;
  std::shared_ptr<Channel> channel_;
};

template <typename Kind>
struct Kept final : Kind {
  py::object keep;
};

using Counts = std::optional<std::vector<std::size_t>>;

// The arguments of each collective, in the order in which Python passes them.
struct Arguments {
  int kind;
  std::uintptr_t input;
  std::uintptr_t output;
  std::size_t count;
  std::size_t input_elements;  // the sizes of the memory at input and output, for the check
  std::size_t output_elements;
  int dtype;
  int op;
  int root;
  double prescale;
  int64_t timeout_ns;

  void give_to(CollectiveJob& job) const {
    fdl_call_init(&job.call);
    job.call.collective = static_cast<fdl_collective>(kind);
    job.call.input = reinterpret_cast<const void*>(input);
    job.call.output = reinterpret_cast<void*>(output);
    job.call.count = count;
    job.call.input_elements = input_elements;
    job.call.output_elements = output_elements;
    job.call.dtype = static_cast<fdl_dtype>(dtype);
    job.call.op = static_cast<fdl_reduce_op>(op);
    job.call.root = root;
    job.prescale = prescale;
    job.timeout_ns = timeout_ns;
  }
};

// A Python function. A thread without the GIL may call and destroy it.
class Callback {
 public:
  explicit Callback(py::function function) : function_(std::move(function)) {}
  ~Callback() {
    if (!function_) return;
    py::gil_scoped_acquire acquire;
    function_ = py::object();
  }
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  void call() {
    py::gil_scoped_acquire acquire;
    const py::object function = std::exchange(function_, py::object());
    try {
      function();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a callback of torch.distributed");
    }
  }

 private:
  py::object function_;
};

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  explicit Channel(std::shared_ptr<Group> group) : group_(std::move(group)), generation_(generation) {
    fdl_group* members = group_->get();
    const Users::User user(group_->users());
    fdl_result result;
    {
      py::gil_scoped_release release;
      result = fdl_comm_create(members, &ordered_);
      if (result == FDL_OK) result = fdl_comm_create(members, &messages_);
    }
    if (result != FDL_OK || PyErr_Occurred() != nullptr) {
      const Failure why = Failure::last();
      fdl_comm_destroy(messages_);
      fdl_comm_destroy(ordered_);
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      raise_failure(why);
    }
    world_ = group_->world()->get();
    collectives_ = std::make_unique<CollectiveQueue>(ordered_, *callbacks_);
    mailbox_ = std::make_unique<Mailbox>(messages_, ordered_, *callbacks_);
  }
  ~Channel() {
    if (!is_this_process())
      abandon();
    else
      close(0);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Blocks.
  void run(const Arguments& arguments) {
    check_open();
    CollectiveJob job;
    arguments.give_to(job);
    finish(job);
  }
  void run_uneven(const Arguments& arguments, Counts counts, Counts recv_counts) {
    check_open();
    CollectiveJob job;
    arguments.give_to(job);
    fill_counts(job, counts, recv_counts);
    finish(job);
  }
  // The same on a device's stream: blocks until the collective is queued there.
  void run_on(const Arguments& arguments, Counts counts, Counts recv_counts, py::handle place) {
    check_open();
    CollectiveJob job;
    arguments.give_to(job);
    fill_counts(job, counts, recv_counts);
    fill_place(job, place);
    finish(job);
  }

  std::shared_ptr<Pending> submit(const Arguments& arguments, Counts counts, Counts recv_counts, py::handle place,
                                  py::object keep) {
    check_open();
    collectives_->take_ended();
    auto job = std::make_shared<Kept<CollectiveJob>>();
    arguments.give_to(*job);
    fill_counts(*job, counts, recv_counts);
    fill_place(*job, place);
    return submit_job(std::move(job), std::move(keep));
  }

  // The same for memory of the CPU, with a compression.
  std::shared_ptr<Pending> submit_compressed(const Arguments& arguments, int compression, py::object keep) {
    check_open();
    collectives_->take_ended();
    auto job = std::make_shared<Kept<CollectiveJob>>();
    arguments.give_to(*job);
    job->compression = static_cast<fdl_compression>(compression);
    return submit_job(std::move(job), std::move(keep));
  }

  // Between the two, submit() keeps collectives on devices back; launch() submits them, to be launched together.
  void collect() { collects_ = true; }
  void launch() {
    collects_ = false;
    const auto jobs = std::exchange(collected_, {});
    if (jobs.empty()) return;
    check_open();
    py::gil_scoped_release release;
    collectives_->submit_group(jobs);
  }

  std::shared_ptr<Pending> post(py::object keep, bool outgoing, std::uintptr_t data, std::size_t bytes, int peer,
                                int tag, int64_t timeout_ns, py::handle at, int batch) {
    check_open();
    mailbox_->take_ended();
    auto job = std::make_shared<Kept<Message>>();
    job->outgoing = outgoing;
    job->data = reinterpret_cast<std::byte*>(data);
    job->bytes = bytes;
    job->peer = peer;
    job->tag = tag;
    job->timeout_ns = timeout_ns;
    job->batch = batch;
    const Place place = Place::from_python(at);
    job->device_kind = place.kind;
    job->device_index = place.index;
    job->stream = place.stream;
    job->keep = std::move(keep);
    auto pending = std::make_shared<Pending>(*mailbox_, job, shared_from_this());
    py::gil_scoped_release release;
    mailbox_->submit(world_, std::move(job));
    return pending;
  }

  // Memory on a CUDA device, such as a segment of torch's allocator, which NCCL then uses without copies of its own.
  void register_memory(int device, std::uintptr_t memory, std::size_t bytes) {
    check_open();
    if (fdl_comm_register(ordered_, FDL_DEVICE_CUDA, device, reinterpret_cast<void*>(memory), bytes) != FDL_OK) {
      raise_failure(Failure::last());
    }
  }
  void deregister_memory(std::uintptr_t memory) {
    check_open();
    fdl_result result;
    {
      py::gil_scoped_release release;
      result = fdl_comm_deregister(ordered_, reinterpret_cast<void*>(memory));
    }
    if (result != FDL_OK) raise_failure(Failure::last());
  }

  void abort(const std::string& reason) {
    check_open();
    py::gil_scoped_release release;
    collectives_->abort(reason);
    mailbox_->abort(reason);
  }

  void close(double grace_s) {
    if (!is_this_process() || !ordered_) return;
    {
      py::gil_scoped_release release;
      const auto grace_ns = static_cast<int64_t>(grace_s * 1e9);
      collectives_->close(grace_ns);
      mailbox_->close(grace_ns);
      fdl_comm_destroy(std::exchange(ordered_, nullptr));
      fdl_comm_destroy(std::exchange(messages_, nullptr));
      callbacks_->stop();
    }
    drop_ended();
  }

  bool is_this_process() const { return generation_ == generation; }
  void check_process() const {
    if (!is_this_process())
      raise_error(FDL_NOT_INITIALIZED,
                  "this process was forked after its process group was created; create a new one in the child");
  }
  void drop_ended() {
    collectives_->take_ended();
    mailbox_->take_ended();
  }

 private:
  std::shared_ptr<Pending> submit_job(std::shared_ptr<Kept<CollectiveJob>> job, py::object keep) {
    job->keep = std::move(keep);
    auto pending = std::make_shared<Pending>(*collectives_, job, shared_from_this());
    if (collects_ && job->call.device_kind != FDL_DEVICE_CPU) {
      collected_.push_back(std::move(job));
      return pending;
    }
    py::gil_scoped_release release;
    collectives_->submit(std::move(job));
    return pending;
  }

  void check_open() const {
    check_process();
    if (!ordered_) raise_error(FDL_SHUT_DOWN, "this process group has been destroyed; create a new one");
  }

  void finish(CollectiveJob& job) {
    {
      py::gil_scoped_release release;
      collectives_->run(job);
    }
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();  // of a signal handler, see World
    if (job.failure) raise_failure(*job.failure);
  }

  static void fill_counts(CollectiveJob& job, Counts& counts, Counts& recv_counts) {
    if (counts) {
      job.counts = std::move(*counts);
      job.call.counts = job.counts.data();
      job.call.counts_length = job.counts.size();
    }
    if (recv_counts) {
      job.recv_counts = std::move(*recv_counts);
      job.call.recv_counts = job.recv_counts.data();
      job.call.recv_counts_length = job.recv_counts.size();
    }
  }

  static void fill_place(CollectiveJob& job, py::handle from) {
    const Place place = Place::from_python(from);
    job.call.device_kind = place.kind;
    job.call.device_index = place.index;
    job.call.stream = place.stream;
  }

  void abandon() {
    static_cast<void>(callbacks_.release());
    static_cast<void>(collectives_.release());
    static_cast<void>(mailbox_.release());
    new std::shared_ptr<Group>(std::move(group_));  // intentionally leaked in a forked child
  }

  std::shared_ptr<Group> group_;
  int generation_;
  fdl_world* world_ = nullptr;
  fdl_comm* ordered_ = nullptr;
  fdl_comm* messages_ = nullptr;
  std::unique_ptr<CallbackThread> callbacks_ = std::make_unique<CallbackThread>();
  std::unique_ptr<CollectiveQueue> collectives_;
  std::unique_ptr<Mailbox> mailbox_;
  // Guarded by the GIL.
  bool collects_ = false;
  std::vector<std::shared_ptr<CollectiveJob>> collected_;
};

void Pending::check_process() const { channel_->check_process(); }

bool Pending::done() const {
  check_process();
  return Jobs::is_done(*job_);
}

void Pending::order_before(std::uintptr_t stream) const {
  check_process();
  fdl_handle* const handle = job_->device_handle();
  if (handle == nullptr) return;
  if (fdl_wait_handle_on(handle, 0, reinterpret_cast<void*>(stream)) != FDL_OK) raise_failure(Failure::last());
}

bool Pending::done_on_device() const {
  check_process();
  int done = 1;
  if (!Jobs::is_done(*job_)) return false;
  if (fdl_handle* const handle = job_->device_handle()) static_cast<void>(fdl_poll_device(handle, &done));
  return done != 0;
}

py::object Pending::failure() const {
  try {
    raise_outcome();
    return py::none();
  } catch (py::error_already_set& error) {
    return error.value();
  }
}

void Pending::raise_outcome() const {
  if (const std::optional<Failure> failure = job_->outcome()) raise_failure(*failure);
}

void Pending::wait() const {
  check_process();
  wait_until(std::numeric_limits<int64_t>::max());
  channel_->drop_ended();
  raise_outcome();
}

// Waits in parts and runs Python's signal handlers between them. An exception of a handler leaves the operation in
// flight.
bool Pending::wait_until(int64_t moment_ns) const {
  while (true) {
    const int64_t now_ns = clock_ns();
    const int64_t part_ns = std::min(kBetweenSignalChecksNs, moment_ns - now_ns);
    bool done;
    {
      py::gil_scoped_release release;
      done = Jobs::wait_until(*job_, now_ns + part_ns);
    }
    if (done) return true;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (clock_ns() >= moment_ns) return false;
  }
}

void Pending::wait_for(double left_s, double given_s) const {
  check_process();
  const bool done = wait_until(clock_ns() + static_cast<int64_t>(left_s * 1e9));
  channel_->drop_ended();
  if (!done) raise_timeout(given_s);
  raise_outcome();
}

void Pending::raise_timeout(double given_s) const {
  std::optional<Failure> late;
  {
    py::gil_scoped_release release;
    late = jobs_->diagnose();
  }
  Failure why = late.value_or(Failure::of(FDL_TIMEOUT, "the rank that it waits for is unknown"));
  char limit[32];
  std::snprintf(limit, sizeof limit, "%g", given_s);
  why.text = job_->title() + " was not finished within the " + limit + " s that wait() was given: " + why.text +
             "; it stays in flight: see the logs of that rank, and call wait() again";
  raise_failure(why);
}

// In a callback the function is called at once: the callback may wait for what the function does.
void Pending::then(py::function function) const {
  check_process();
  if (CallbackThread::is_this_thread()) {
    py::gil_scoped_release release;
    Jobs::wait(*job_);
  } else {
    auto callback = std::make_shared<Callback>(function);
    if (jobs_->notify(*job_, [callback] { callback->call(); })) return;
  }
  function();
}

bool Pending::withdraw() const {
  check_process();
  return jobs_->withdraw(*job_);
}

// Binds a method that takes Arguments and more. Python passes the fields of Arguments one by one.
template <typename Result, typename... More>
auto unpacked(Result (Channel::*method)(const Arguments&, More...)) {
  return [method](Channel& channel, int kind, std::uintptr_t input, std::uintptr_t output, std::size_t count,
                  std::size_t input_elements, std::size_t output_elements, int dtype, int op, int root, double prescale,
                  int64_t timeout_ns, More... more) {
    return (channel.*method)(
        {kind, input, output, count, input_elements, output_elements, dtype, op, root, prescale, timeout_ns},
        std::move(more)...);
  };
}

}  // namespace

void bind_channel(py::module_& module) {
  module.def("forget_channels", [] { ++generation; });
  py::class_<Pending, std::shared_ptr<Pending>>(module, "Pending")
      .def("done", &Pending::done)
      .def("wait", &Pending::wait)
      .def("wait_for", &Pending::wait_for)
      .def("order_before", &Pending::order_before)
      .def("done_on_device", &Pending::done_on_device)
      .def("failure", &Pending::failure)
      .def("then", &Pending::then)
      .def("withdraw", &Pending::withdraw)
      .def_property_readonly("source", &Pending::source)
      .def_property_readonly("kept", &Pending::kept);
  py::class_<Channel, std::shared_ptr<Channel>>(module, "Channel")
      .def(py::init<std::shared_ptr<Group>>())
      // No argument names and defaults, which would double the cost of a small call.
      .def("run", unpacked(&Channel::run))
      .def("run_uneven", unpacked(&Channel::run_uneven))
      .def("run_on", unpacked(&Channel::run_on))
      .def("submit", unpacked(&Channel::submit))
      .def("submit_compressed", unpacked(&Channel::submit_compressed))
      .def("collect", &Channel::collect)
      .def("launch", &Channel::launch)
      .def("post", &Channel::post)
      .def("register_memory", &Channel::register_memory)
      .def("deregister_memory", &Channel::deregister_memory)
      .def("abort", &Channel::abort)
      .def("close", &Channel::close);
}

}  // namespace farandole_python

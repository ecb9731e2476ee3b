// Ordered communicators and requests. The calling thread runs the collective with the GIL released.
#include <pybind11/stl.h>

#include <optional>

#include "arguments.h"
#include "exceptions.h"
#include "view.h"
#include "world.h"

namespace farandole_python {
namespace py = pybind11;

namespace {

class Communicator : public EndsWithWorld {
 public:
  static std::shared_ptr<Communicator> create(std::shared_ptr<Group> group) {
    auto made = std::make_shared<Communicator>(group);
    group->world()->add(made);
    return made;
  }
  explicit Communicator(std::shared_ptr<Group> group) : group_(std::move(group)) {
    fdl_group* members = group_->get();
    const Users::User user(group_->users());
    fdl_result result;
    {
      py::gil_scoped_release release;
      result = fdl_comm_create(members, &comm_);
    }
    if (PyErr_Occurred() != nullptr) destroy();
    check_interrupted(result);
  }
  // In a forked child a call of another thread of the parent may seem to be in progress.
  ~Communicator() override { destroy(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  fdl_comm* get() const {
    group_->get();
    if (!comm_) raise_error(FDL_INVALID_ARGUMENT, "this communicator has been freed");
    return comm_;
  }
  void close() {
    if (is_in_use()) raise_in_use();
    destroy();
  }
  void world_ends() override {
    if (!is_in_use()) destroy();
  }
  void abort(const std::string& reason) {
    fdl_comm* comm = get();
    const Users::User user(aborts_);
    fdl_result result;
    {
      py::gil_scoped_release release;
      result = fdl_comm_abort(comm, reason.c_str());
    }
    check(result);
  }

  // A call on the communicator. Throws while another one is in progress, in another thread or below a signal handler.
  class Call {
   public:
    explicit Call(Communicator& comm) : inside(comm.get_unused()), comm_(comm), user_(comm.calls_) {}
    ~Call() {
      while (!comm_.dropped_.empty()) {
        const std::vector<Dropped> dropped = std::exchange(comm_.dropped_, {});
        py::gil_scoped_release release;
        for (const Dropped& one : dropped) fdl_request_free(one.request);
      }
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    fdl_comm* const inside;

   private:
    Communicator& comm_;
    const Users::User user_;  // until the dropped requests are free
  };

  // Frees the request, which no object refers to any more. `views`: the memory that it reads and writes until then.
  void drop(fdl_request* request, std::vector<View> views) {
    if (calls_.any()) {
      dropped_.push_back({request, std::move(views)});  // no thread may use the communicator beside the call
      return;
    }
    const Users::User user(calls_);
    py::gil_scoped_release release;
    fdl_request_free(request);
  }

 private:
  struct Dropped {
    fdl_request* request;
    std::vector<View> views;
  };

  bool is_in_use() const { return calls_.any() || aborts_.any(); }
  fdl_comm* get_unused() const {
    fdl_comm* const comm = get();
    if (calls_.any()) raise_in_use();
    return comm;
  }
  void destroy() {
    fdl_comm* comm = std::exchange(comm_, nullptr);
    if (comm == nullptr) return;
    py::gil_scoped_release release;
    fdl_comm_destroy(comm);
  }
  [[noreturn]] static void raise_in_use() {
    raise_error(
        FDL_INVALID_ARGUMENT,
        "another call on this communicator is in progress; a communicator belongs to one thread at a time: make "
        "one for each thread, or use operations by name");
  }

  std::shared_ptr<Group> group_;
  fdl_comm* comm_ = nullptr;
  Users calls_;  // one at a time
  Users aborts_;
  std::vector<Dropped> dropped_;
};

// A started operation. It keeps the memory that the operation reads and writes until the operation is done; the core
// copies counts when an operation starts.
class Request {
 public:
  Request(std::shared_ptr<Communicator> comm, std::vector<View> views)
      : comm_(std::move(comm)), views_(std::move(views)) {}
  ~Request() {
    if (request) comm_->drop(request, std::move(views_));
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  bool test() {
    if (!request) return true;
    const Communicator::Call call(*comm_);
    int done = 0;
    fdl_result result = fdl_test(request, &done);
    if (result != FDL_OK || done) finish();
    check(result);
    return done != 0;
  }
  void wait() {
    if (!request) return;
    const Communicator::Call call(*comm_);
    fdl_result result;
    {
      py::gil_scoped_release release;
      result = fdl_wait(request);
    }
    finish();
    check_interrupted(result);
  }

  fdl_request* request = nullptr;
  double error_bound = 0;  // written when a compressed collective completes

 private:
  void finish() {
    request = nullptr;
    views_.clear();
  }

  std::shared_ptr<Communicator> comm_;
  std::vector<View> views_;
};

struct Options {
  fdl_call_options options;
  std::string algorithm;
  bool given = false;

  explicit Options(const py::dict& wanted) : given(!wanted.empty()) {
    fdl_call_options_init(&options);
    if (wanted.contains("algorithm")) {
      algorithm = wanted["algorithm"].cast<std::string>();
      options.algorithm = algorithm.c_str();
    }
    if (wanted.contains("prescale")) options.prescale = number_of<double>(wanted["prescale"], "prescale");
    if (wanted.contains("postscale")) options.postscale = number_of<double>(wanted["postscale"], "postscale");
    if (wanted.contains("timeout_ns")) options.timeout_ns = number_of<int64_t>(wanted["timeout_ns"], "timeout");
    if (wanted.contains("deterministic")) options.deterministic = wanted["deterministic"].cast<int>();
    if (wanted.contains("compression"))
      options.compression = static_cast<fdl_compression>(wanted["compression"].cast<int>());
  }
  // `error_bound`: where a compressed call writes its bound.
  void bound_to(double& error_bound) {
    if (options.compression != FDL_COMPRESSION_NONE) options.error_bound = &error_bound;
  }
  const fdl_call_options* pointer() const { return given ? &options : nullptr; }
};

using Counts = std::optional<std::vector<size_t>>;

// One entry for each rank of the communicator, or None.
struct GivenCounts {
  std::vector<size_t> entries;
  const size_t* data = nullptr;  // not null if counts were given, even if they are empty
  size_t length = FDL_UNSTATED;

  explicit GivenCounts(Counts counts) {
    if (!counts) return;
    entries = std::move(*counts);
    static constexpr size_t kNone = 0;
    data = entries.empty() ? &kNone : entries.data();
    length = entries.size();
  }
};

// The entries of an argument such as counts or splits, one for each of `ranks` ranks, as a list of plain integers.
std::vector<int64_t> checked_counts(const std::string& name, py::handle values, size_t ranks) {
  if (!py::isinstance<py::iterable>(values) || py::isinstance<py::str>(values))
    raise_error(FDL_INVALID_ARGUMENT, name + " must be a sequence of integers, one for each rank");
  std::vector<int64_t> entries;
  for (py::handle value : values) {
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!number) throw py::error_already_set();
    entries.push_back(number_of<int64_t>(number, name.c_str()));
    if (entries.back() < 0)
      raise_error(FDL_INVALID_ARGUMENT, name + "[" + std::to_string(entries.size() - 1) + "] is " +
                                            std::to_string(entries.back()) + "; it must not be negative");
  }
  if (entries.size() != ranks)
    raise_error(FDL_INVALID_ARGUMENT, name + " has " + std::to_string(entries.size()) + " entries, and there are " +
                                          std::to_string(ranks) + " ranks; pass one entry for each rank");
  return entries;
}

void put_on_device(const std::vector<View>& views, fdl_call& what) {
  const Place& place = views.front().place;
  const Place& other = views.back().place;
  if (place.kind != other.kind || place.index != other.index)
    raise_error(FDL_INVALID_ARGUMENT, "input and output are on different devices; they must be on the same device");
  what.device_kind = place.kind;
  what.device_index = place.index;
  what.stream = place.stream;
}

// One collective. `input` or `output` may be None if this rank has none; `count` is as in the C API. Returns the error
// bound of a call that waits, and the request of one that does not.
py::object call(const std::shared_ptr<Communicator>& comm, int collective, py::object input, py::object output,
                size_t count, Counts counts, Counts recv_counts, int op, py::handle root, const py::dict& wanted,
                bool wait) {
  Options options(wanted);
  fdl_call what;
  fdl_call_init(&what);
  what.collective = static_cast<fdl_collective>(collective);
  std::vector<View> views;
  if (!output.is_none()) {
    views.push_back(view_of(output, Access::kWrite));
    what.output = views.back().data;
    what.output_elements = views.back().count();
    what.dtype = views.back().dtype;
  }
  if (!input.is_none()) {
    views.push_back(view_of(input, Access::kRead));
    what.input = views.back().data;
    what.input_elements = views.back().count();
    what.dtype = views.back().dtype;
  }
  if (!views.empty()) put_on_device(views, what);
  if (views.size() == 2 && views[0].dtype != views[1].dtype)
    raise_error(FDL_INVALID_ARGUMENT, std::string("the input holds ") + fdl_dtype_name(views[1].dtype) +
                                          ", the output " + fdl_dtype_name(views[0].dtype) + "; give them one type");
  what.count = count;
  what.op = static_cast<fdl_reduce_op>(op);
  what.root = number_of<int>(root, "root");
  const GivenCounts given(std::move(counts));
  const GivenCounts received(std::move(recv_counts));
  what.counts = given.data;
  what.counts_length = given.length;
  what.recv_counts = received.data;
  what.recv_counts_length = received.length;
  const Communicator::Call call(*comm);
  fdl_result result;
  if (wait) {
    double error_bound = 0;
    options.bound_to(error_bound);
    {
      py::gil_scoped_release release;
      result = fdl_call_ex(call.inside, &what, options.pointer(), nullptr);
    }
    check_interrupted(result);
    return options.options.compression == FDL_COMPRESSION_NONE ? py::none() : py::object(py::float_(error_bound));
  }
  auto request = std::make_shared<Request>(comm, std::move(views));
  options.bound_to(request->error_bound);
  check(fdl_call_ex(call.inside, &what, options.pointer(), &request->request));
  return py::cast(request);
}

std::shared_ptr<Request> message(const std::shared_ptr<Communicator>& comm, bool sends, py::object tensor,
                                 py::handle peer, const py::dict& wanted, bool wait) {
  const Options options(wanted);
  const std::vector<View> views{view_of(tensor, sends ? Access::kRead : Access::kWrite)};
  const View& view = views.front();
  fdl_call what;
  fdl_call_init(&what);
  what.collective = sends ? FDL_SEND : FDL_RECV;
  what.input = view.data;
  what.output = view.data;
  what.count = view.count();
  what.dtype = view.dtype;
  what.root = number_of<int>(peer, "peer");
  put_on_device(views, what);
  const Communicator::Call call(*comm);
  if (wait) {
    fdl_result result;
    {
      py::gil_scoped_release release;
      result = fdl_call_ex(call.inside, &what, options.pointer(), nullptr);
    }
    check_interrupted(result);
    return nullptr;
  }
  auto request = std::make_shared<Request>(comm, views);
  check(fdl_call_ex(call.inside, &what, options.pointer(), &request->request));
  return request;
}

}  // namespace

void bind_communicator(py::module_& module) {
  py::class_<Request, std::shared_ptr<Request>>(module, "Request")
      .def("test", &Request::test)
      .def_readonly("error_bound", &Request::error_bound)
      .def("wait", &Request::wait);
  py::class_<Communicator, std::shared_ptr<Communicator>>(module, "Communicator")
      .def(py::init(&Communicator::create))
      .def("close", &Communicator::close)
      .def("abort", &Communicator::abort)
      .def("call", &call)
      .def("message", &message);
  module.def("checked_counts", &checked_counts);
}

}  // namespace farandole_python

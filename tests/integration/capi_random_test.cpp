// A random caller of the C API: seeded sequences of calls on all ranks, lifetimes in any order, and nonsense in
// between.
//
// All ranks draw the collective steps of a round from one seed, so that they agree on them. Between two steps each rank
// draws calls of its own that must be refused and must change nothing, while another thread of it reads facts. Sums are
// exact, no call may fail with INTERNAL, and none may hang. At the end the world and what was made from it end in any
// order. The sanitizers are the other half of the test. RANDOM_CALLS_SEEDS=1000 runs more rounds, RANDOM_CALLS_FIRST=17
// begins with another seed.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "tests/support/sanitized.h"
#include "tests/support/worlds.h"

namespace world_test {
namespace {

constexpr int kRanks = 3;
constexpr int kSteps = 40;
constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();

int number_from(const char* variable, int usual) {
  const char* text = std::getenv(variable);
  return text == nullptr ? usual : std::atoi(text);
}

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int below(int count) { return static_cast<int>(engine_() % static_cast<uint64_t>(count)); }
  bool one_in(int count) { return below(count) == 0; }
  template <typename Range>
  auto& pick(Range& range) {
    return range[static_cast<std::size_t>(below(static_cast<int>(range.size())))];
  }
  template <typename Range>
  void shuffle(Range& range) {
    std::shuffle(range.begin(), range.end(), engine_);
  }

 private:
  std::mt19937_64 engine_;
};

// Any integer as a value of an enumeration, as a caller in C may pass it.
template <typename Enum>
Enum nonsense(Dice& dice) {
  const std::array values{-1, 77, 1 << 20, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()};
  const int value = dice.pick(values);
  Enum out;
  static_assert(sizeof out == sizeof value);
  std::memcpy(&out, &value, sizeof out);
  return out;
}

// One rank in one round.
class Caller {
 public:
  Caller(World& me, uint64_t seed)
      : me_(me), shared_(seed), own_(seed * kRanks + static_cast<uint64_t>(me.rank) + 1), others_(seed ^ 0x5eed) {}

  void run() {
    std::thread reader([this] { read_facts(); });
    for (int step = 0; step < kSteps && !testing::Test::HasFatalFailure(); ++step) {
      take_step(shared_.below(12));
      for (int i = own_.below(4); i > 0; --i) refuse(own_.below(30));
    }
    stopping_ = true;
    reader.join();
    FDL_EXPECT_OK(fdl_barrier(me_.comm));
    end();
  }

 private:
  // A communicator and what is in flight on it.
  struct Comm {
    fdl_comm* comm = nullptr;
    bool is_shared = false;
    int next = 0;                        // of the values of this communicator, the same on all ranks
    std::vector<fdl_request*> requests;  // in flight, each a sum
  };
  struct Sum {
    std::vector<int64_t> values;
    int64_t expected = 0;
  };

  // Buffers live to the end of the round: an operation whose handle was freed may still be in flight.
  Sum& new_sum(int base) {
    const std::array sizes{0, 1, 3, 500, 9000};
    Sum& sum = sums_.emplace_back();
    sum.values.reserve(1);  // an output that is NULL is one for the library to allocate
    sum.values.assign(static_cast<std::size_t>(shared_.pick(sizes)), base * (me_.rank + 1));
    sum.expected = static_cast<int64_t>(base) * kRanks * (kRanks + 1) / 2;
    return sum;
  }
  static void expect_exact(const Sum& sum) {
    EXPECT_TRUE(std::ranges::all_of(sum.values, [&](int64_t one) { return one == sum.expected; }));
  }

  // ---- Steps that all ranks take ----

  void take_step(int step) {
    switch (step) {
      case 0:
        return make_comm();
      case 1:
        return drop_comm(shared_.one_in(3));
      case 2:
        return blocking();
      case 3:
        return start_request();
      case 4:
        return drain();
      case 5:
        return submit_calls();
      case 6:
        return make_group();
      case 7:
        return drop_group();
      case 8:
        return disagree();
      case 9:
        return abort_comm();
      default:
        return submit_names();
    }
  }

  Comm* some_comm() { return comms_.empty() ? nullptr : &*std::next(comms_.begin(), shared_.below(count(comms_))); }
  template <typename Range>
  static int count(const Range& range) {
    return static_cast<int>(range.size());
  }
  fdl_group* some_group() {
    const int chosen = shared_.below(count(groups_) + 1);
    return chosen == 0 ? me_.all : groups_[static_cast<std::size_t>(chosen - 1)];
  }

  void make_comm() {
    if (comms_.size() >= 3) return;
    Comm made;
    FDL_ASSERT_OK(fdl_comm_create(some_group(), &made.comm));
    comms_.push_back(made);
  }

  // Rudely: with requests in flight, which may then only be freed.
  void drop_comm(bool rudely) {
    Comm* comm = some_comm();
    if (comm == nullptr) return;
    if (!rudely) finish(*comm);
    drop(*comm);
  }
  void drop(const Comm& comm) {
    observe_all();  // submitted calls of this communicator may be among them
    fdl_comm_destroy(comm.comm);
    for (fdl_request* request : comm.requests) fdl_request_free(request);
    comms_.remove_if([&](const Comm& one) { return &one == &comm; });
  }

  void blocking() {
    Comm* comm = some_comm();
    if (comm == nullptr) return;
    Sum& sum = new_sum(++comm->next);
    FDL_ASSERT_OK(
        fdl_allreduce(comm->comm, sum.values.data(), sum.values.data(), sum.values.size(), FDL_INT64, FDL_SUM));
    expect_exact(sum);
    FDL_ASSERT_OK(fdl_barrier(comm->comm));
  }

  void start_request() {
    Comm* comm = some_comm();
    if (comm == nullptr || comm->is_shared || comm->requests.size() >= 8) return;
    Sum& sum = new_sum(++comm->next);
    fdl_request* request = nullptr;
    FDL_ASSERT_OK(fdl_iallreduce(comm->comm, sum.values.data(), sum.values.data(), sum.values.size(), FDL_INT64,
                                 FDL_SUM, &request));
    comm->requests.push_back(request);
    in_flight_[request] = &sum;
  }

  void drain() {
    if (Comm* comm = some_comm(); comm != nullptr) finish(*comm);
  }

  // Each rank waits in its own way.
  void finish(Comm& comm) {
    std::vector<fdl_request*> requests = std::exchange(comm.requests, {});
    std::vector<const Sum*> sums;
    for (fdl_request* request : requests) sums.push_back(in_flight_[request]);
    if (own_.one_in(3)) {
      FDL_ASSERT_OK(fdl_wait_all(requests.data(), requests.size()));
    } else if (own_.one_in(2)) {
      for (std::size_t left = requests.size(); left > 0; --left) {
        std::size_t index = kHuge;
        FDL_ASSERT_OK(fdl_wait_any(requests.data(), requests.size(), &index));
        ASSERT_LT(index, requests.size());
      }
    } else {
      own_.shuffle(requests);
      for (fdl_request* request : requests) {
        int done = 0;
        while (own_.one_in(2) && done == 0) FDL_ASSERT_OK(fdl_test(request, &done));
        if (done == 0) {
          FDL_ASSERT_OK(fdl_wait(request));
        }
      }
    }
    for (const Sum* sum : sums) expect_exact(*sum);
  }

  void submit_calls() {
    Comm* comm = some_comm();
    if (comm == nullptr) return;
    if (!comm->is_shared) {
      finish(*comm);
      comm->is_shared = true;
    }
    for (int i = shared_.below(4); i >= 0; --i) {
      Sum& sum = new_sum(++comm->next);
      fdl_call call;
      fdl_call_init(&call);
      call.input = call.output = sum.values.data();
      call.count = call.input_elements = call.output_elements = sum.values.size();
      call.dtype = FDL_INT64;
      fdl_handle* handle = nullptr;
      FDL_ASSERT_OK(fdl_call_submit(comm->comm, &call, nullptr, &handle));
      handles_.push_back({handle, &sum});
    }
    if (shared_.one_in(2)) observe_all();
  }

  void submit_names() {
    fdl_group* group = some_group();
    std::vector<int> order(static_cast<std::size_t>(1 + shared_.below(6)));
    std::iota(order.begin(), order.end(), next_name_);
    next_name_ += count(order);
    std::vector<Sum*> sums;
    for (const int name : order) sums.push_back(&new_sum(name + 1));
    std::vector<std::size_t> turns(order.size());
    std::iota(turns.begin(), turns.end(), std::size_t{0});
    own_.shuffle(turns);
    for (const std::size_t turn : turns) submit_name(group, order[turn], *sums[turn]);
    if (shared_.one_in(2)) observe_all();
  }

  void submit_name(fdl_group* group, int number, Sum& sum) {
    const std::string name = "name " + std::to_string(number);
    const int64_t shape = count(sum.values);
    fdl_operation operation = sum_of(name.c_str(), shape);
    operation.input.data = operation.output = sum.values.data();
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_submit(group, &operation, 1, &handle));
    handles_.push_back({handle, &sum});
  }

  static fdl_operation sum_of(const char* name, const int64_t& shape) {
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.name = name;
    operation.input.dtype = FDL_INT64;
    operation.input.shape = &shape;
    operation.input.ndim = 1;
    return operation;
  }

  // Ends all handles, each in its own way.
  void observe_all() {
    own_.shuffle(handles_);
    for (auto& [handle, sum] : std::exchange(handles_, {})) {
      int done = 0;
      std::atomic<int> calls{0};
      switch (own_.below(4)) {
        case 0:  // the outcome stays unknown
          fdl_handle_free(handle);
          continue;
        case 1:
          while (done == 0) FDL_ASSERT_OK(fdl_poll(handle, &done));
          break;
        case 2:
          FDL_ASSERT_OK(fdl_handle_notify(
              handle, [](void* context) { ++*static_cast<std::atomic<int>*>(context); }, &calls));
          while (calls == 0) std::this_thread::yield();
          break;
        default:
          break;
      }
      FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
      expect_exact(*sum);
      fdl_output output{.struct_size = sizeof(fdl_output)};
      FDL_ASSERT_OK(fdl_handle_output(handle, 0, &output));
      EXPECT_EQ(output.data, nullptr);
      EXPECT_EQ(fdl_handle_output(handle, 1 + static_cast<std::size_t>(own_.below(9)), &output), FDL_INVALID_ARGUMENT);
      fdl_handle_free(handle);
    }
    // A rank that has only freed its handles must not end a communicator for which others still wait.
    FDL_ASSERT_OK(fdl_barrier(me_.comm));
  }

  void make_group() {
    if (groups_.size() >= 2) return;
    std::vector<int> ranks(kRanks);
    std::iota(ranks.begin(), ranks.end(), 0);
    shared_.shuffle(ranks);
    fdl_group* group = nullptr;
    if (shared_.one_in(2)) {
      FDL_ASSERT_OK(fdl_group_create(me_.world, ranks.data(), ranks.size(), &group));
    } else {
      FDL_ASSERT_OK(fdl_group_split(some_group(), 0, own_.below(5), &group));
    }
    ASSERT_EQ(fdl_group_size(group), kRanks);
    groups_.push_back(group);
  }

  // Communicators of the group outlive it; its named operations end first.
  void drop_group() {
    if (groups_.empty()) return;
    observe_all();
    std::swap(shared_.pick(groups_), groups_.back());
    fdl_group_destroy(groups_.back());
    groups_.pop_back();
  }

  // One rank submits another type. All get the same error, and nothing else happens.
  void disagree() {
    const int wrong = shared_.below(kRanks);
    const std::string name = "name " + std::to_string(next_name_++);
    const int64_t shape = 1;
    Sum& value = sums_.emplace_back();
    value.values.resize(1);
    fdl_operation operation = sum_of(name.c_str(), shape);
    operation.input.data = operation.output = value.values.data();
    if (me_.rank == wrong) operation.input.dtype = FDL_UINT64;
    EXPECT_EQ(fdl_run(some_group(), &operation, 1, -1, nullptr), FDL_MISMATCH);
  }

  void abort_comm() {
    const int aborting = shared_.below(kRanks);
    Comm* comm = some_comm();
    if (comm == nullptr || !shared_.one_in(3)) return;
    observe_all();
    if (me_.rank == aborting) {
      FDL_ASSERT_OK(fdl_comm_abort(comm->comm, own_.one_in(2) ? nullptr : "the dice say so"));
    }
    int64_t value = 1;
    EXPECT_EQ(fdl_allreduce(comm->comm, &value, &value, 1, FDL_INT64, FDL_SUM), FDL_ABORTED);
    drop(*comm);
  }

  // ---- Calls that one rank makes, and that change nothing ----

  static void expect_refused(fdl_result result) {
    EXPECT_NE(result, FDL_OK);
    EXPECT_NE(result, FDL_INTERNAL) << fdl_last_error()->text;
    EXPECT_STRNE(fdl_last_error()->text, "");
  }

  void refuse(int what);
  void refuse_ordered(int what);
  void refuse_named(int what);
  void refuse_objects(int what);

  // The second thread of this rank.
  void read_facts() {
    std::vector<char> text(64);
    while (!stopping_) {
      fdl_world_facts facts{.struct_size = sizeof(fdl_world_facts)};
      FDL_EXPECT_OK(fdl_world_info(me_.world, &facts));
      fdl_counters counters{.struct_size = sizeof(fdl_counters)};
      FDL_EXPECT_OK(fdl_metrics(me_.world, &counters));
      EXPECT_GT(fdl_config_describe(text.data(), text.size() - static_cast<std::size_t>(others_.below(64))), 64u);
      EXPECT_EQ(fdl_group_world_rank(me_.all, others_.below(100) + kRanks), -1);
      void* memory = nullptr;
      if (fdl_alloc(me_.world, static_cast<std::size_t>(others_.below(5000)), &memory) == FDL_OK) fdl_free(memory);
      fdl_handle* handle = nullptr;
      FDL_EXPECT_OK(fdl_handle_create(me_.world, &handle));
      FDL_EXPECT_OK(fdl_handle_complete(handle));
      EXPECT_EQ(fdl_handle_complete(handle), FDL_INVALID_ARGUMENT);
      FDL_EXPECT_OK(fdl_wait_handle(handle, others_.below(2) - 1));
      fdl_handle_free(handle);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  // ---- The end ----

  // The world, groups, communicators and handles end in any order. Requests end after their communicators.
  void end() {
    std::vector<std::function<void()>> ends;
    std::vector<fdl_request*> requests;
    for (Comm& comm : comms_) {
      requests.insert(requests.end(), comm.requests.begin(), comm.requests.end());
      ends.emplace_back([this, handle = comm.comm] { end_comm(handle); });
    }
    for (fdl_group* group : groups_) ends.emplace_back([group] { fdl_group_destroy(group); });
    for (auto& [handle, sum] : handles_) ends.emplace_back([handle = handle] { fdl_handle_free(handle); });
    ends.emplace_back([this] { fdl_world_destroy(std::exchange(me_.world, nullptr)); });
    ends.emplace_back([this] { fdl_comm_destroy(std::exchange(me_.comm, nullptr)); });
    own_.shuffle(ends);
    for (const auto& one : ends) one();
    own_.shuffle(requests);
    for (fdl_request* request : requests) fdl_request_free(request);
  }

  void end_comm(fdl_comm* comm) {
    if (me_.world == nullptr) {
      int64_t value = 1;
      expect_refused(fdl_allreduce(comm, &value, &value, 1, FDL_INT64, FDL_SUM));
    }
    fdl_comm_destroy(comm);
  }

  World& me_;
  Dice shared_;  // equal on all ranks
  Dice own_;
  Dice others_;  // of the second thread
  std::atomic<bool> stopping_{false};
  std::list<Sum> sums_;
  std::list<Comm> comms_;
  std::vector<fdl_group*> groups_;
  std::map<fdl_request*, Sum*> in_flight_;
  std::vector<std::pair<fdl_handle*, Sum*>> handles_;
  int next_name_ = 0;
};

void Caller::refuse(int what) {
  if (what < 10) return refuse_ordered(what);
  if (what < 20) return refuse_named(what - 10);
  refuse_objects(what - 20);
}

// On the communicator that the world was made with, or on one that has requests in flight.
void Caller::refuse_ordered(int what) {
  fdl_comm* comm = comms_.empty() || own_.one_in(2) ? me_.comm : comms_.front().comm;
  std::array<int64_t, 4> values{};
  fdl_call call;
  fdl_call_init(&call);
  call.input = call.output = values.data();
  call.count = 1;
  call.dtype = FDL_INT64;
  fdl_call_options options;
  fdl_call_options_init(&options);
  switch (what) {
    case 0:
      call.struct_size = static_cast<std::size_t>(own_.below(8));
      break;
    case 1:
      call.collective = nonsense<fdl_collective>(own_);
      break;
    case 2:
      call.dtype = nonsense<fdl_dtype>(own_);
      break;
    case 3:
      call.op = nonsense<fdl_reduce_op>(own_);
      break;
    case 4:
      call.collective = own_.one_in(2) ? FDL_BROADCAST : FDL_RECV;
      call.root = own_.one_in(2) ? -1 - own_.below(1 << 30) : kRanks + own_.below(1 << 30);
      break;
    case 5:
      call.count = own_.one_in(2) ? kHuge : kHuge / 8;
      break;
    case 6:
      call.output = nullptr;
      if (own_.one_in(2)) call.input = nullptr;
      break;
    case 7:
      call.device_kind = nonsense<fdl_device_kind>(own_);
      break;
    case 8:
      options.compression = nonsense<fdl_compression>(own_);
      break;
    default:
      call.input_elements = static_cast<std::size_t>(2 + own_.below(9));
      break;
  }
  fdl_request* request = nullptr;
  expect_refused(fdl_call_ex(comm, &call, &options, own_.one_in(2) ? &request : nullptr));
  EXPECT_EQ(request, nullptr);
}

void Caller::refuse_named(int what) {
  std::array<int64_t, 4> values{};
  std::array<int64_t, 2> shape{2, 2};
  fdl_operation operation = sum_of("refused", shape[0]);
  operation.input.ndim = 2;
  operation.input.data = operation.output = values.data();
  std::size_t count = 1;
  switch (what) {
    case 0:
      operation.struct_size = own_.one_in(2) ? 0 : kHuge;
      break;
    case 1:
      operation.name = own_.one_in(2) ? nullptr : "";
      break;
    case 2:
      operation.input.dtype = nonsense<fdl_dtype>(own_);
      break;
    case 3:
      operation.kind = nonsense<fdl_kind>(own_);
      break;
    case 4:
      operation.input.ndim = own_.one_in(2) ? -1 : 65;
      break;
    case 5:
      shape[static_cast<std::size_t>(own_.below(2))] = own_.one_in(2) ? -3 : std::numeric_limits<int64_t>::max();
      break;
    case 6:
      operation.op = nonsense<fdl_reduce_op>(own_);
      break;
    case 7:
      count = own_.one_in(2) ? 0 : kHuge;
      break;
    case 8:
      operation.kind = FDL_NAMED_BROADCAST;
      operation.root = own_.one_in(2) ? -1 : kRanks;
      break;
    default:
      operation.input.device_kind = 1000 + own_.below(1000);
      break;
  }
  fdl_handle* handle = nullptr;
  expect_refused(fdl_submit(me_.all, &operation, count, &handle));
  EXPECT_EQ(handle, nullptr);
}

void Caller::refuse_objects(int what) {
  int64_t value = 1;
  std::size_t index = 0;
  fdl_group* group = nullptr;
  fdl_comm* comm = nullptr;
  fdl_request* request = nullptr;
  std::array<int, 3> ranks{0, own_.one_in(2) ? 0 : -1 - own_.below(1000), 1};
  switch (what) {
    case 0:
      return expect_refused(fdl_allreduce(nullptr, &value, &value, 1, FDL_INT64, FDL_SUM));
    case 1:
      return expect_refused(fdl_group_create(own_.one_in(4) ? nullptr : me_.world, ranks.data(), ranks.size(), &group));
    case 2:
      return expect_refused(fdl_comm_create(nullptr, &comm));
    case 3:
      return expect_refused(fdl_wait_any(&request, 1, &index));
    case 4:
      return expect_refused(fdl_test(nullptr, nullptr));
    case 5:
      return expect_refused(fdl_wait_handle(nullptr, own_.below(3) - 1));
    case 6:
      return expect_refused(fdl_comm_limit(me_.comm, own_.below(3) - 1));
    case 7:
      return expect_refused(fdl_comm_create(me_.all, nullptr));
    case 8:
      return expect_refused(fdl_world_info(me_.world, nullptr));
    default:
      fdl_comm_destroy(nullptr);
      fdl_group_destroy(me_.all);  // ignored
      fdl_request_free(nullptr);
      fdl_handle_free(nullptr);
      return expect_refused(fdl_world_shrink(me_.world, nullptr, nullptr));
  }
}

TEST(RandomCalls, AreExactOrRefused) {
  const int first = number_from("RANDOM_CALLS_FIRST", 1);
  const int rounds = number_from("RANDOM_CALLS_SEEDS", fdl::test::unless_sanitized(30, 10));
  const std::array<Knobs, 3> ways{Knobs{}, Knobs{{"transport", "tcp"}}, Knobs{{"memory_bytes", "0"}}};
  for (int seed = first; seed < first + rounds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_ranks(kRanks, ways[static_cast<std::size_t>(seed) % ways.size()],
              [&](World& me) { Caller(me, static_cast<uint64_t>(seed)).run(); });
    ASSERT_FALSE(testing::Test::HasFailure()) << "RANDOM_CALLS_SEEDS=1 RANDOM_CALLS_FIRST=" << seed << " repeats it";
  }
}

}  // namespace
}  // namespace world_test

// HostLibrary exchanges data in a Place that the streams of all ranks share. The later side of a message copies it.
#include "tests/fakes/device/host_library.h"

#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <utility>

#include "base/mutex.h"
#include "system/event.h"
#include "tests/support/ranks.h"

namespace fdl::test {
namespace {

struct Post {
  std::byte* bytes = nullptr;
  std::size_t count = 0;
  int* left = nullptr;  // messages of its group that are not done
};

struct ChannelPosts {
  std::deque<Post> sends;
  std::deque<Post> recvs;
};

// What the ranks of one id share.
struct Place {
  Mutex mutex;
  CondVar changed;
  int size = 0;
  int present = 0;
  bool over = false;  // a rank was interrupted or its device failed
  std::string fault;
  std::map<std::pair<int, int>, ChannelPosts> channels;  // from, to
  // The current collective: `round` counts the finished ones.
  int arrived = 0;
  int left = 0;
  uint64_t round = 0;
  std::vector<const void*> inputs;
  std::vector<const Event*> notifiers;
};

std::shared_ptr<Place> place_of(uint64_t number, int size) {
  static Mutex mutex;
  static std::map<uint64_t, std::weak_ptr<Place>> places;
  MutexLock lock(mutex);
  auto known = places[number].lock();
  if (known == nullptr) {
    known = std::make_shared<Place>();
    known->size = size;
    known->inputs.resize(static_cast<std::size_t>(size));
    places[number] = known;
  }
  return known;
}

void end_place(Place& place) {
  MutexLock lock(place.mutex);
  place.over = true;
  place.changed.notify_all();
}

struct GroupMessage {
  bool outgoing = false;
  int peer = 0;
  std::byte* bytes = nullptr;
  std::size_t count = 0;
};

// The work of a group of messages on the stream. It blocks like a device.
void run_group(Place& place, int rank, const std::vector<GroupMessage>& messages) {
  MutexLock lock(place.mutex);
  int left = static_cast<int>(messages.size());
  for (const GroupMessage& message : messages) {
    auto& channel = place.channels[message.outgoing ? std::pair(rank, message.peer) : std::pair(message.peer, rank)];
    (message.outgoing ? channel.sends : channel.recvs).push_back({message.bytes, message.count, &left});
    while (!channel.sends.empty() && !channel.recvs.empty()) {
      const Post from = channel.sends.front(), to = channel.recvs.front();
      channel.sends.pop_front();
      channel.recvs.pop_front();
      if (from.count != to.count) place.fault = "a message's sizes differ";
      std::memcpy(to.bytes, from.bytes, std::min(from.count, to.count));
      --*from.left;
      --*to.left;
      place.changed.notify_all();
    }
  }
  place.changed.wait(place.mutex, Deadline::never(), [&] { return left == 0 || place.over; });
  if (left > 0) place.channels.clear();  // the posts refer to counters of abandoned groups
}

// Waits for the inputs of all ranks and then computes this rank's result. No rank returns before all have read.
template <typename Work>
void run_in_group(Place& place, int rank, const void* input, const Work& work) {
  {
    MutexLock lock(place.mutex);
    place.inputs[static_cast<std::size_t>(rank)] = input;
    ++place.arrived;
    place.changed.notify_all();
    place.changed.wait(place.mutex, Deadline::never(), [&] { return place.arrived == place.size || place.over; });
    if (place.over) return;
  }
  const std::vector<std::byte> result = work(place.inputs);
  MutexLock lock(place.mutex);
  const uint64_t round = place.round;
  if (++place.left == place.size) {
    place.arrived = place.left = 0;
    ++place.round;
    place.changed.notify_all();
  }
  place.changed.wait(place.mutex, Deadline::never(), [&] { return place.round > round || place.over; });
}

}  // namespace

class HostGroup final : public Collectives {
 public:
  HostGroup(HostLibrary& library, std::shared_ptr<Place> place, int rank, HostDevice& device, Deadline deadline,
            Event notifier)
      : library_(library),
        place_(std::move(place)),
        rank_(rank),
        device_(device),
        deadline_(deadline),
        notifier_(std::move(notifier)) {
    MutexLock lock(place_->mutex);
    if (library.options_.absent) return;
    ++place_->present;
    place_->notifiers.push_back(&notifier_);
    for (const Event* one : place_->notifiers) one->ring();
  }
  ~HostGroup() override {
    if (ended_.ok()) wait_for_own();  // a normal end: the others may still exchange data
    library_.remove_all_of(*this);
    MutexLock lock(place_->mutex);
    std::erase(place_->notifiers, &notifier_);
  }

  std::string_view name() const override { return "host library 7"; }
  bool can(const CollectiveSpec& spec) const override {
    const Collective kind = spec.collective;
    const bool inside = kind == Collective::reduce_scatter || kind == Collective::allgather;
    return (kind == Collective::allreduce || kind == Collective::broadcast || (inside && library_.options_.gathers)) &&
           spec.reduction.user == nullptr;
  }
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override {
    if (!ended_.ok()) return completion.finish(ended_);
    ++library_.started_;
    spec_ = spec;
    buffers_ = buffers;
    completion_ = &completion;
    progress();
  }
  bool progress() override {
    if (completion_ == nullptr) return false;
    const auto all_here = check();
    if (!all_here.ok()) {
      ended_ = all_here.status();
      std::exchange(completion_, nullptr)->finish(ended_);
      return true;
    }
    if (!*all_here) return false;
    std::exchange(completion_, nullptr)->finish(queue());
    return true;
  }
  void interrupt(const Status& why) override {
    if (!ended_.ok()) return;
    ended_ = why;
    end_place(*place_);
    if (completion_ != nullptr) std::exchange(completion_, nullptr)->finish(why);
  }
  std::string phase() const override { return completion_ == nullptr ? "host library" : "host library, joining"; }
  int wake_fd() const override { return notifier_.fd(); }
  bool prepare_to_sleep() override {
    notifier_.clear();
    if (std::exchange(ask_again_, false)) return false;
    const auto all_here = check();
    return completion_ == nullptr || (all_here.ok() && !*all_here);
  }
  void finish_sleep() override {}

  const Status& ended() const { return ended_; }
  void ring_soon() { ask_again_ = true; }

  // Whether all ranks have joined.
  Result<bool> check() const {
    MutexLock lock(place_->mutex);
    if (!ended_.ok()) return ended_;
    if (place_->over) return Status(Code::peer_lost, "host library: a rank has left");
    if (!place_->fault.empty()) return Status(Code::internal, place_->fault);
    if (place_->present == place_->size) return true;
    if (!deadline_.passed()) return false;
    return Status(Code::timeout, "host library: only " + std::to_string(place_->present) + " of " +
                                     std::to_string(place_->size) + " ranks have joined in time");
  }

 private:
  friend class HostChannels;

  // Queues work on the stream and counts it until it has run.
  Status enqueue(Stream stream, std::function<void()> work) {
    {
      MutexLock lock(place_->mutex);
      ++*jobs_;
    }
    return device_.enqueue(stream, [place = place_, jobs = jobs_, work = std::move(work)] {
      work();
      MutexLock lock(place->mutex);
      --*jobs;
      place->changed.notify_all();
    });
  }
  void wait_for_own() {
    MutexLock lock(place_->mutex);
    place_->changed.wait(place_->mutex, Deadline::after_seconds(10), [&] { return *jobs_ == 0 || place_->over; });
  }

  // The range of all inputs that this rank reads: its first element and the count.
  struct Cut {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  Cut own_cut(const CollectiveSpec& spec) const {
    if (spec.collective != Collective::reduce_scatter) return {0, spec.count};
    const auto own = spec.counts.begin() + rank_;
    return {std::accumulate(spec.counts.begin(), own, std::size_t{0}), *own};
  }

  Status queue() {
    const CollectiveSpec spec = spec_;
    const std::vector<std::size_t> counts(spec.counts.begin(), spec.counts.end());
    const bool reads = spec.collective != Collective::broadcast || rank_ == spec.root;
    const void* input = reads ? device_.at(buffers_.input) : nullptr;
    auto* output = static_cast<std::byte*>(device_.at(buffers_.output));
    return enqueue(spec.stream, [place = place_, rank = rank_, spec, counts, cut = own_cut(spec), input, output] {
      std::vector<std::byte> result;
      run_in_group(*place, rank, input,
                   [&](const std::vector<const void*>& inputs) { return result = fold(spec, counts, cut, inputs); });
      if (!result.empty()) std::memcpy(output, result.data(), result.size());
    });
  }

  static std::vector<std::byte> fold(const CollectiveSpec& spec, const std::vector<std::size_t>& counts, Cut cut,
                                     const std::vector<const void*>& inputs) {
    const std::size_t element = size_of(spec.dtype);
    std::vector<std::byte> result;
    const auto append = [&](const void* from, std::size_t count) {
      const auto* bytes = static_cast<const std::byte*>(from);
      if (count > 0) result.insert(result.end(), bytes, bytes + count * element);
    };
    if (spec.collective == Collective::broadcast) {
      append(inputs[static_cast<std::size_t>(spec.root)], spec.count);
    } else if (spec.collective == Collective::allgather) {
      for (std::size_t i = 0; i < inputs.size(); ++i) append(inputs[i], counts[i]);
    } else {
      std::vector<std::vector<std::byte>> scaled;
      std::vector<const void*> sources;
      for (const void* one : inputs) {
        auto& own = scaled.emplace_back(cut.count * element);
        scale(spec.dtype, own.data(), static_cast<const std::byte*>(one) + cut.first * element, cut.count,
              spec.prescale);
      }
      for (const auto& one : scaled) sources.push_back(one.data());
      result.resize(cut.count * element);
      reduce_many(spec.dtype, spec.reduction, result.data(), sources, cut.count);
      scale(spec.dtype, result.data(), result.data(), cut.count, spec.postscale);
    }
    return result;
  }

  HostLibrary& library_;
  std::shared_ptr<Place> place_;
  const int rank_;
  HostDevice& device_;
  const Deadline deadline_;
  Event notifier_;
  const std::shared_ptr<int> jobs_ = std::make_shared<int>(0);  // number of queued jobs; guarded by the place's mutex
  CollectiveSpec spec_;
  Buffers buffers_;
  Completion* completion_ = nullptr;
  bool ask_again_ = false;  // dismiss() returned false
  Status ended_;
};

class HostChannels final : public DeviceChannels {
 public:
  HostChannels(HostLibrary& library, HostGroup& group) : library_(library), group_(group) {}

  Result<bool> ready() override {
    if (busy_ > 0) {
      group_.notifier_.ring();
      return --busy_ == 0;
    }
    return group_.check();
  }
  Status begin_group() override {
    FDL_CHECK(!open_);
    open_ = true;
    messages_.clear();
    ++library_.groups_;
    return {};
  }
  Status send(Stream stream, int peer, const void* data, std::size_t bytes) override {
    return add(stream, {true, peer, static_cast<std::byte*>(group_.device_.at(data)), bytes});
  }
  Status recv(Stream stream, int peer, void* data, std::size_t bytes) override {
    return add(stream, {false, peer, static_cast<std::byte*>(group_.device_.at(data)), bytes});
  }
  Status end_group() override {
    FDL_CHECK(open_);
    open_ = false;
    busy_ = library_.options_.busy_after_group;
    return group_.enqueue(stream_, [place = group_.place_, rank = group_.rank_, messages = messages_] {
      run_group(*place, rank, messages);
    });
  }

 private:
  Status add(Stream stream, GroupMessage message) {
    FDL_CHECK(open_ && message.count > 0 && message.peer != group_.rank_);
    FDL_CHECK(messages_.empty() || stream == stream_);
    stream_ = stream;
    messages_.push_back(message);
    return {};
  }

  HostLibrary& library_;
  HostGroup& group_;
  std::vector<GroupMessage> messages_;
  Stream stream_ = nullptr;
  bool open_ = false;
  int busy_ = 0;
};

HostLibrary::HostLibrary(Options options) : options_(std::move(options)) {}

Status HostLibrary::conflict(std::span<const DeviceFacts> ranks, std::span<const Member> members) const {
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i].version == ranks[0].version) continue;
    return Status(Code::unsupported, "rank " + std::to_string(members[i].world_rank) + " has version " +
                                         std::to_string(ranks[i].version) + " of the host library");
  }
  return {};
}

Result<DeviceLibrary::Id> HostLibrary::make_id() {
  FDL_RETURN_IF_ERROR(options_.no_id);
  static std::atomic<uint64_t> last{0};
  const uint64_t number = ++last;
  Id id{};
  std::memcpy(id.data() + 100, &number, sizeof number);
  return id;
}

Result<std::unique_ptr<Collectives>> HostLibrary::join(const Id& id, int rank, std::span<const Member> members,
                                                       Device& device, Deadline deadline) {
  FDL_RETURN_IF_ERROR(options_.no_join);
  uint64_t number = 0;
  std::memcpy(&number, id.data() + 100, sizeof number);
  FDL_ASSIGN_OR_RETURN(Event notifier, Event::make());
  return std::unique_ptr<Collectives>(new HostGroup(*this, place_of(number, static_cast<int>(members.size())), rank,
                                                    static_cast<HostDevice&>(device), deadline, std::move(notifier)));
}

void HostLibrary::break_down(const Status& why) {
  MutexLock lock(mutex_);
  broken_ = why;
}

Status HostLibrary::status_of(const Collectives& joined) const {
  MutexLock lock(mutex_);
  return broken_.ok() ? static_cast<const HostGroup&>(joined).ended() : broken_;
}

Result<void*> HostLibrary::allocate(Device& device, std::size_t bytes) {
  FDL_RETURN_IF_ERROR(options_.no_memory);
  FDL_ASSIGN_OR_RETURN(void* memory, device.allocate(bytes));
  ++allocated_;
  MutexLock lock(mutex_);
  blocks_[memory] = bytes;
  return memory;
}

void HostLibrary::release(Device& device, void* memory) {
  {
    MutexLock lock(mutex_);
    FDL_CHECK(!enrolled_.contains(memory));
    blocks_.erase(memory);
  }
  --allocated_;
  static_cast<HostDevice&>(device).release_now(memory);
}

Status HostLibrary::enroll(Collectives& joined, void* memory, std::size_t bytes, bool alike) {
  MutexLock lock(mutex_);
  FDL_CHECK(!alike || blocks_.at(memory) == bytes);
  enrolled_[memory] = {&joined, std::to_string(bytes) + (alike ? " alike" : " here")};
  return {};
}

void HostLibrary::remove_all_of(const Collectives& joined) {
  MutexLock lock(mutex_);
  std::erase_if(enrolled_, [&](const auto& one) { return one.second.first == &joined; });
}

Result<bool> HostLibrary::dismiss(Collectives& joined, void* memory) {
  MutexLock lock(mutex_);
  if (++dismissals_[memory] <= options_.busy_dismissals) {
    static_cast<HostGroup&>(joined).ring_soon();
    return false;
  }
  dismissals_.erase(memory);
  enrolled_.erase(memory);
  return true;
}

std::string HostLibrary::known() const {
  MutexLock lock(mutex_);
  std::string all;
  for (const auto& one : enrolled_) all += (all.empty() ? "" : ", ") + one.second.second;
  return all;
}

std::unique_ptr<DeviceChannels> HostLibrary::channels_of(Collectives& joined) {
  if (!options_.has_channels) return nullptr;
  return std::make_unique<HostChannels>(*this, static_cast<HostGroup&>(joined));
}

}  // namespace fdl::test

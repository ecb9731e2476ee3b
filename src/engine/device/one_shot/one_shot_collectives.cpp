// OneShotCollectives launches one kernel for each sum, and orders the kernels of several streams by an event.
#include "engine/device/one_shot/one_shot_collectives.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "algorithms/choice/choose.h"
#include "engine/device/device_failure.h"

namespace fdl {

bool OneShotCollectives::applies(const Config& config, std::span<const DeviceFacts> ranks) {
  if (config.one_shot_bytes == 0 || ranks.size() < 2) return false;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].host != ranks[0].host || ranks[i].kind != ranks[0].kind) return false;
    // Two kernels that wait for each other may not fit on one device at once.
    for (std::size_t k = 0; k < i; ++k) {
      if (ranks[i].device == ranks[k].device) return false;
    }
  }
  return true;
}

Result<std::unique_ptr<OneShotCollectives>> OneShotCollectives::make(Device& device, int rank, int size,
                                                                     std::size_t most_bytes, double patience_s) {
  std::unique_ptr<OneShotCollectives> made(new OneShotCollectives(device, rank, size, most_bytes, patience_s));
  FDL_RETURN_IF_ERROR(made->prepare());
  return made;
}

OneShotCollectives::OneShotCollectives(Device& device, int rank, int size, std::size_t most_bytes, double patience_s)
    : device_(device),
      sums_(device.one_shot_sums()),
      rank_(rank),
      most_bytes_(most_bytes),
      patience_s_(patience_s),
      blocks_(static_cast<std::size_t>(size)) {}

Status OneShotCollectives::prepare() {
  if (sums_ == nullptr || blocks_.size() > sums_->most_ranks()) {
    return Status(Code::unsupported, std::string(device_.name()) + " has no one-shot sums of so many ranks");
  }
  FDL_ASSIGN_OR_RETURN(void* const stop, device_.allocate_pinned(sizeof *stop_));
  stop_ = static_cast<uint32_t*>(stop);
  *stop_ = 0;
  FDL_ASSIGN_OR_RETURN(own_stream_, device_.make_stream());
  FDL_ASSIGN_OR_RETURN(last_, device_.make_event());
  return {};
}

Status OneShotCollectives::allocate(OneShotSums::Address& own) {
  FDL_ASSIGN_OR_RETURN(blocks_[static_cast<std::size_t>(rank_)], sums_->allocate(most_bytes_, own));
  return {};
}

Status OneShotCollectives::open(std::span<const OneShotSums::Address> ranks) {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (static_cast<int>(i) == rank_) continue;
    FDL_ASSIGN_OR_RETURN(blocks_[i], sums_->open(ranks[i]));
  }
  is_open_ = true;
  return {};
}

bool OneShotCollectives::can(const CollectiveSpec& spec) const {
  return spec.collective == Collective::allreduce && spec.device == &device_ && spec.count > 0 &&
         spec.count * size_of(spec.dtype) <= most_bytes_ && spec.prescale == 1 && is_auto(spec.algorithm) &&
         spec.reduction.op != Op::user && supports(spec.dtype, spec.reduction.op);
}

void OneShotCollectives::start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  if (ended_.ok()) {
    if (const Status queued = queue(spec, buffers); !queued.ok()) ended_ = as_device_failure(queued);
  }
  completion.finish(ended_);
}

Status OneShotCollectives::queue(const CollectiveSpec& spec, Buffers buffers) {
  const CurrentDevice current(device_);  // once for all calls
  const OneShotSums::Sum sum{.input = buffers.input,
                             .output = buffers.output,
                             .count = spec.count,
                             .dtype = spec.dtype,
                             .op = spec.reduction.op,
                             .factor = spec.postscale,
                             .rank = rank_,
                             .blocks = blocks_,
                             .vector_bytes = most_bytes_,
                             .stop = stop_};
  FDL_ASSIGN_OR_RETURN(const bool captured, device_.is_captured(spec.stream));
  if (captured) return sums_->sum(spec.stream, sum);
  return launch(spec.stream, sum);
}

Status OneShotCollectives::launch(Stream stream, const OneShotSums::Sum& sum) {
  const uint64_t id = device_.stream_id(stream);
  const bool same_stream = stream == last_stream_ && id == last_stream_id_ && id != 0;
  if (in_flight_ && !same_stream) FDL_RETURN_IF_ERROR(device_.wait(stream, last_));
  FDL_RETURN_IF_ERROR(sums_->sum(stream, sum));
  FDL_RETURN_IF_ERROR(device_.set(last_, stream));
  in_flight_ = true;
  last_stream_ = stream;
  last_stream_id_ = id;
  return {};
}

DeviceLibrary::Work OneShotCollectives::poll_work() {
  if (!in_flight_) return {false, passed_};
  const auto reached = device_.reached(last_);
  if (!reached.ok()) ended_ = as_device_failure(reached.status());
  if (!reached.ok() || *reached) {
    in_flight_ = false;
    ++passed_;
  }
  return {in_flight_, passed_};
}

// ---- The end ----

void OneShotCollectives::interrupt(const Status& why) {
  if (ended_.ok()) ended_ = why;
  if (stop_ != nullptr) std::atomic_ref<uint32_t>(*stop_).store(1, std::memory_order_release);
}

bool OneShotCollectives::reached_within(double seconds) {
  const Deadline deadline = Deadline::after_seconds(seconds);
  while (in_flight_) {
    if (!poll_work().in_flight || deadline.passed()) break;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return !in_flight_;
}

// An empty sum: it has ended when the kernels of all ranks before it have, and no rank reads a vector in it.
bool OneShotCollectives::say_farewell() {
  if (!ended_.ok() || !is_open_) return false;
  const CurrentDevice current(device_);
  const OneShotSums::Sum nothing{.rank = rank_, .blocks = blocks_, .vector_bytes = most_bytes_, .stop = stop_};
  return launch(own_stream_, nothing).ok() && reached_within(patience_s_) && ended_.ok();
}

OneShotCollectives::~OneShotCollectives() {
  const bool all_left = say_farewell();
  if (!all_left) interrupt(Status(Code::shut_down, "the other ranks did not end in time"));
  const bool is_idle = reached_within(patience_s_);
  for (std::size_t i = 0; i < blocks_.size() && is_idle; ++i) {
    if (blocks_[i] == nullptr) continue;
    if (static_cast<int>(i) != rank_) {
      sums_->close(blocks_[i]);
    } else if (all_left || !is_open_) {
      sums_->release(blocks_[i]);
    }
  }
  if (last_ != nullptr) device_.end_event(last_);
  if (own_stream_ != nullptr) device_.end_stream(own_stream_);
  // A kernel that has not ended still reads it.
  if (stop_ != nullptr && is_idle) device_.release_pinned(stop_);
}

}  // namespace fdl

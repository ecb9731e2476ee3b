// One collective is in flight at a time, as one request of MPI.
#include "transports/mpi/mpi_collectives.h"

#include <climits>
#include <cstring>
#include <numeric>

#include "base/log.h"
#include "system/poll_timer.h"
#include "transports/mpi/mpi_transport.h"
#include "transports/mpi/mpi_user.h"

namespace fdl {
namespace {

bool reduces(Collective collective) { return collective == Collective::allreduce || collective == Collective::reduce; }

class MpiCollectives final : public Collectives, private MpiUser {
 public:
  MpiCollectives(std::shared_ptr<MpiGroup> group, int rank, bool configured, PollTimer timer)
      : group_(std::move(group)),
        mpi_(group_->mpi),
        comm_(group_->comm),
        rank_(rank),
        configured_(configured),
        timer_(std::move(timer)) {
    open();
    mpi_.before_finalize(leave_all);
  }
  ~MpiCollectives() override { close(); }

  std::string_view name() const override { return "mpi's own"; }

  bool can(const CollectiveSpec& spec) const override {
    if (!is_whole(spec.algorithm) && !(configured_ && is_auto(spec.algorithm))) return false;
    if (spec.deterministic || spec.device != nullptr || spec.prescale != 1) return false;
    switch (spec.collective) {
      case Collective::barrier:
        return true;
      case Collective::broadcast:
        return spec.count * size_of(spec.dtype) <= INT_MAX;
      case Collective::allgather:
        return std::accumulate(spec.counts.begin(), spec.counts.end(), std::size_t{0}) * size_of(spec.dtype) <= INT_MAX;
      case Collective::allreduce:
      case Collective::reduce:
        return spec.count <= INT_MAX && spec.reduction.user == nullptr &&
               mpi_.can_reduce(spec.dtype, spec.reduction.op);
      default:
        return false;
    }
  }

  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override {
    completion.done = false;
    if (!failure_.ok()) return completion.finish(failure_);
    if (!mpi_.may_call()) return completion.finish(failure_ = mpi_.wrong_thread());
    if (!enter()) return completion.finish(failure_ = after_end());
    begin(spec, buffers, completion);
    exit();
  }

  bool progress() override {
    if (completion_ == nullptr || !mpi_.may_call()) return false;
    if (!enter()) {
      if (!has_ended()) return false;
      fail(after_end());
      return true;
    }
    MpiArrival ignored;
    const auto done = mpi_.test(request_, ignored);
    exit();
    if (done.ok() && !*done) return false;
    timer_.note_move();
    if (!done.ok()) {
      fail(done.status());
    } else {
      if (scaled_ != nullptr) scale(dtype_, scaled_, scaled_, count_, postscale_);
      std::exchange(completion_, nullptr)->finish();
    }
    return true;
  }

  void interrupt(const Status& why) override {
    if (failure_.ok()) fail(why);
  }

  std::string phase() const override { return "MPI's own collective"; }

  int wake_fd() const override { return timer_.fd(); }
  bool prepare_to_sleep() override {
    timer_.begin(completion_ != nullptr);
    return true;
  }
  void finish_sleep() override { timer_.end(); }

 private:
  void begin(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
    MpiCollective call{
        .collective = spec.collective,
        .dtype = spec.dtype,
        .op = spec.reduction.op,
        .root = spec.root,
        .in_place = buffers.input == buffers.output && (spec.collective != Collective::reduce || rank_ == spec.root),
        .input = buffers.input,
        .output = buffers.output,
        .count = spec.count};
    if (spec.collective == Collective::allgather) take_counts(spec, call);
    // MPI broadcasts from and into one buffer.
    if (spec.collective == Collective::broadcast && rank_ == spec.root) {
      if (buffers.output != nullptr && buffers.output != buffers.input) {
        std::memcpy(buffers.output, buffers.input, spec.count * size_of(spec.dtype));
      } else {
        call.output = const_cast<void*>(buffers.input);
      }
    }
    const bool has_result = spec.collective == Collective::allreduce || rank_ == spec.root;
    scaled_ = reduces(spec.collective) && has_result && spec.postscale != 1 ? buffers.output : nullptr;
    dtype_ = spec.dtype;
    count_ = spec.count;
    postscale_ = spec.postscale;
    timer_.note_move();
    const Status begun = mpi_.start_collective(comm_, call, request_);
    if (!begun.ok()) return completion.finish(failure_ = begun);
    completion_ = &completion;
  }

  // MPI reads the counts, in bytes, until the collective is done.
  void take_counts(const CollectiveSpec& spec, MpiCollective& call) {
    counts_.clear();
    places_.clear();
    int place = 0;
    for (const std::size_t count : spec.counts) {
      counts_.push_back(static_cast<int>(count * size_of(spec.dtype)));
      places_.push_back(place);
      place += counts_.back();
    }
    call.counts = counts_.data();
    call.places = places_.data();
    call.count = static_cast<std::size_t>(counts_[static_cast<std::size_t>(rank_)]);
    const auto* own = static_cast<const std::byte*>(call.output) + places_[static_cast<std::size_t>(rank_)];
    call.in_place = call.input == own;
  }

  void fail(const Status& why) {
    failure_ = why;
    if (auto* completion = std::exchange(completion_, nullptr)) completion->finish(why);
  }

  void leave() override {
    // A request that is still there belongs to a collective that has failed.
    MpiArrival ignored;
    if (request_ != 0 && mpi_.may_call() && !mpi_.test(request_, ignored).ok()) request_ = 0;
    if (request_ != 0) log_info("mpi: a collective is still in flight; MPI will not be finalized");
    group_->will_end(request_ == 0 ? MpiEnd::freed : MpiEnd::abandoned);
    group_.reset();
  }

  std::shared_ptr<MpiGroup> group_;  // until leave()
  MpiLibrary& mpi_;
  MpiComm comm_;
  int rank_;
  bool configured_;  // FARANDOLE_ALGORITHM = whole
  PollTimer timer_;
  MpiRequest request_ = 0;
  Completion* completion_ = nullptr;  // of the collective in flight
  Status failure_;
  std::vector<int> counts_;
  std::vector<int> places_;
  void* scaled_ = nullptr;  // the result to scale when it is there; null: none
  Dtype dtype_ = Dtype::float32;
  std::size_t count_ = 0;
  double postscale_ = 1;
};

}  // namespace

Result<std::unique_ptr<Collectives>> make_mpi_collectives(const Transport& transport, const Membership& membership) {
  auto group = mpi_group_of(transport);
  if (!group) return std::unique_ptr<Collectives>();
  FDL_ASSIGN_OR_RETURN(PollTimer timer, PollTimer::make());
  return std::unique_ptr<Collectives>(
      new MpiCollectives(std::move(group), membership.rank, is_whole(membership.config->algorithm), std::move(timer)));
}

}  // namespace fdl

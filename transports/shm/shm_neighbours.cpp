// Neighbours implements sleeping, waking and the record of each rank's state in the control area of the segment.
#include "transports/shm/shm_neighbours.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "system/process/processor.h"
#include "transports/shm/memory_group/lives_watch.h"

namespace fdl {
namespace {

enum RankState : uint32_t { kPresent = 0, kLeft = 1, kFailed = 2 };
constexpr uint64_t kDoorbellToken = ~uint64_t{0};
constexpr uint64_t kGroupToken = kDoorbellToken - 1;
// Smaller ranges are backed alone. Buffers of the default size are larger; the rings of two ranks, which may only carry
// control messages, are not.
constexpr std::size_t kLeastInHugePages = 768_KiB;

// Orders the caller's earlier store before its later load, also between processes. A sleeper stores its sleep word and
// then reads the data; a waker stores the data and then reads the sleep word. Without the fence both could miss the
// other's store.
void full_fence() {
#if defined(__SANITIZE_THREAD__)
  static std::atomic<int> word;  // ThreadSanitizer does not model fences
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Copies text into a fixed field, truncated if necessary and always terminated.
template <std::size_t N>
void put_text(std::array<char, N>& target, std::string_view text) {
  const std::size_t length = std::min(text.size(), N - 1);
  std::memcpy(target.data(), text.data(), length);
  target[length] = 0;
}

// Another process has written the field, so its end is not trusted.
template <std::size_t N>
std::string text_in(const std::array<char, N>& field) {
  return {field.data(), ::strnlen(field.data(), N)};
}

}  // namespace

// The control block of one rank. Zeroed memory is its valid first state. `sleeps_for` is written by all ranks, the rest
// only by the owner of the block.
struct Neighbours::Control {
  alignas(128) std::atomic<RankMask> sleeps_for;
  std::atomic<int64_t> rung_ns;                 // written by the rank that rings, before it rings
  alignas(128) std::atomic<int32_t> processor;  // as of the owner's last activity(), plus 1; 0: unknown
  std::atomic<int64_t> wake_up_ns;              // from a ring to the end of the owner's sleep, smoothed; 0: unknown
  std::atomic<uint32_t> state;                  // the owner writes the fields below before it stores kFailed
  int32_t code;
  int32_t culprit_rank;
  std::array<char, 64> culprit_host;
  std::array<char, 800> text;
};

std::size_t Neighbours::control_bytes(int size) { return sizeof(Control) * static_cast<std::size_t>(size); }

Result<std::unique_ptr<Neighbours>> Neighbours::make(ShmShare share) {
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  if (share.bytes < control_bytes(static_cast<int>(share.members.size()))) {
    return Status(Code::internal, "shm: the segment is too small for its ranks");
  }
  const Event& doorbell = share.doorbells[static_cast<std::size_t>(share.index)]->event;
  FDL_RETURN_IF_ERROR(poller.add_edges(doorbell.fd(), kDoorbellToken));
  if (share.group_lives) FDL_RETURN_IF_ERROR(poller.add_edges(share.group_lives->fd(), kGroupToken));
  for (std::size_t i = 0; i < share.lives.size(); ++i) {
    // The token of a liveness descriptor is its rank; it becomes readable when that process ends.
    if (static_cast<int>(i) != share.index) FDL_RETURN_IF_ERROR(poller.add(share.lives[i]->get(), i));
  }
  std::unique_ptr<Neighbours> made(new Neighbours(std::move(share), std::move(poller)));
  if (made->rank() == 0) {
    const Bytes control = made->share_.memory().first(control_bytes(made->size()));
    FDL_RETURN_IF_ERROR(made->back(control));
  }
  return made;
}

Neighbours::Neighbours(ShmShare share, Poller poller)
    : share_(std::move(share)),
      poller_(std::move(poller)),
      controls_(reinterpret_cast<Control*>(share_.memory().data())),
      creator_(::getpid()) {}

Neighbours::~Neighbours() {
  if (::getpid() != creator_) return;  // a forked child must not report that its parent has left
  if (control(rank()).state.load(std::memory_order_relaxed) == kPresent) set_state(kLeft);
}

Neighbours::Control& Neighbours::control(int rank) const { return controls_[rank]; }

Bytes Neighbours::memory() const { return share_.memory().subspan(control_bytes(size())); }

// False also if the node of any rank is unknown.
bool Neighbours::are_on_several_nodes() const {
  const int mine = member(rank()).numa_node;
  return std::ranges::all_of(share_.members, [](const Member& one) { return one.numa_node >= 0; }) &&
         std::ranges::any_of(share_.members, [&](const Member& one) { return one.numa_node != mine; });
}

// The kernel takes pages from the node of the thread that reserves them. A range that fills a huge page gets one.
Status Neighbours::back(Bytes mine) const {
  const Bytes whole = share_.memory();
  const bool in_huge_pages = mine.size() >= kLeastInHugePages && !are_on_several_nodes();
  const std::size_t page = in_huge_pages ? SharedSegment::largest_page_bytes() : SharedSegment::page_bytes();
  const auto first = static_cast<std::size_t>(mine.data() - whole.data());
  const std::size_t begin = first / page * page;
  const std::size_t end = std::min(round_up(first + mine.size(), page), whole.size());
  const Status backed = share_.segment->commit(share_.offset + begin, end - begin);
  if (backed.ok()) return {};
  const Member& me = member(rank());
  return Status::blame(me.world_rank, me.host_name, backed.code(),
                       "shm: " + name_of(rank()) + " has no memory for " + std::to_string((end - begin) >> 10) +
                           " KiB of its part of the shared memory (see FARANDOLE_SHM_BYTES): " + backed.text());
}

std::string Neighbours::name_of(int rank) const { return fdl::name_of(member(rank)); }

void Neighbours::announce_sleep(RankMask ranks) {
  // The collectives and the readiness flags of this rank may sleep at the same time. Their masks are merged, and a
  // doorbell that rang in between stays readable.
  sleeps_for_ = sleeping_ ? sleeps_for_ | ranks : ranks;
  sleeping_ = true;
  control(rank()).sleeps_for.store(sleeps_for_, std::memory_order_relaxed);
  full_fence();
}

bool Neighbours::cancel_sleep() {
  if (!sleeping_) return false;
  sleeping_ = false;
  // A waker has cleared the word before it rang.
  const bool rung = control(rank()).sleeps_for.exchange(0, std::memory_order_relaxed) == 0;
  if (rung) find_ended();  // takes the ring
  return rung;
}

void Neighbours::end_sleep() {
  if (!cancel_sleep()) {
    // No other rank rang: the wake-up comes from a process that ended, or was a ring for another communicator.
    find_ended();
    return;
  }
  // Only this rank writes its estimate. One long wake-up changes it by a quarter, and short ones lower it again.
  Control& mine = control(rank());
  const int64_t took = now_ns() - mine.rung_ns.load(std::memory_order_relaxed);
  const int64_t before = mine.wake_up_ns.load(std::memory_order_relaxed);
  mine.wake_up_ns.store(before == 0 ? took : (3 * before + took) / 4, std::memory_order_relaxed);
}

void Neighbours::wake_waiters(RankMask ranks) {
  full_fence();
  for (const int other : each_of(ranks)) {
    std::atomic<RankMask>& word = control(other).sleeps_for;
    // Most ranks do not sleep for this one: they cost one load.
    if ((word.load(std::memory_order_relaxed) & bit_of(rank())) == 0) continue;
    // Only the rank that clears the word rings, so that concurrent wakers write one event.
    if (word.exchange(0, std::memory_order_relaxed) != 0) ring(other);
  }
}

void Neighbours::ring(int other) {
  rung_ |= bit_of(other);
  control(other).rung_ns.store(now_ns(), std::memory_order_relaxed);
  share_.doorbells[static_cast<std::size_t>(other)]->event.ring();
}

PeerActivity Neighbours::activity(RankMask ranks) {
  const int32_t here = this_processor() + 1;
  // A store of the same value would take the line away from ranks that read it.
  if (control(rank()).processor.load(std::memory_order_relaxed) != here) {
    control(rank()).processor.store(here, std::memory_order_relaxed);
  }
  PeerActivity activity;
  for (const int other : each_of(ranks & others())) {
    if (control(other).processor.load(std::memory_order_relaxed) != here) continue;
    activity.on_this_processor = true;
    activity.should_leave |= other < rank();
  }
  for (const int other : each_of(std::exchange(rung_, 0))) {
    activity.wake_up_ns = std::max(activity.wake_up_ns, control(other).wake_up_ns.load(std::memory_order_relaxed));
  }
  return activity;
}

bool Neighbours::find_ended() {
  std::array<Poller::Ready, 16> ready;
  const RankMask before = ended_;
  const std::size_t count = poller_.wait(ready, Deadline::at_ns(0));
  for (std::size_t i = 0; i < count; ++i) {
    if (ready[i].token == kDoorbellToken) continue;
    if (ready[i].token == kGroupToken) {
      note_ended_of_group();
      continue;
    }
    // An ended process stays readable for ever. Removing it keeps it from waking this rank again.
    ended_ |= bit_of(static_cast<int>(ready[i].token));
    poller_.remove(share_.lives[ready[i].token]->get());
  }
  return ended_ != before;
}

// The set of the group reports each end once, and stays readable.
void Neighbours::note_ended_of_group() {
  const RankMask ended = share_.group_lives->ended();
  for (const int other : each_of(others())) {
    if ((ended & bit_of(share_.group_of[static_cast<std::size_t>(other)])) != 0) ended_ |= bit_of(other);
  }
}

RankMask Neighbours::gone() {
  RankMask gone = ended_;
  for (const int other : each_of(others() & ~ended_)) {
    if (control(other).state.load(std::memory_order_acquire) != kPresent) gone |= bit_of(other);
  }
  return gone;
}

bool Neighbours::has_ended(int rank) const {
  return (ended_ & bit_of(rank)) != 0 && control(rank).state.load(std::memory_order_acquire) == kPresent;
}

Status Neighbours::why_gone(int rank) const {
  const Control& record = control(rank);
  const Member& lost = member(rank);
  switch (record.state.load(std::memory_order_acquire)) {
    case kFailed:
      return Status::blame(record.culprit_rank, text_in(record.culprit_host), static_cast<Code>(record.code),
                           text_in(record.text));
    case kLeft:
      return Status::blame(lost.world_rank, lost.host_name, Code::peer_lost,
                           "shm: " + name_of(rank) + " has left: it ended its part of the group");
    default:
      return Status::blame(lost.world_rank, lost.host_name, Code::peer_lost,
                           "shm: rank " + std::to_string(lost.world_rank) + " (" + lost.host_name + ", process " +
                               std::to_string(lost.process_id) + ") is gone: its process ended");
  }
}

void Neighbours::fail(const Status& why) {
  Control& record = control(rank());
  if (::getpid() != creator_ || record.state.load(std::memory_order_relaxed) != kPresent) return;
  // The error must be complete before set_state() publishes it.
  record.code = static_cast<int32_t>(why.code());
  record.culprit_rank = why.error().culprit_rank;
  put_text(record.culprit_host, why.error().culprit_host);
  put_text(record.text, why.text());
  set_state(kFailed);
}

void Neighbours::set_state(uint32_t state) {
  control(rank()).state.store(state, std::memory_order_release);
  wake_all();  // also ranks that wait for others, which in turn may wait for this one
}

void Neighbours::wake_all() {
  full_fence();
  for (const int other : each_of(others())) {
    if (control(other).sleeps_for.exchange(0, std::memory_order_relaxed) != 0) ring(other);
  }
}

}  // namespace fdl

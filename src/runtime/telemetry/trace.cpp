// Trace writes one record for each change of a tensor's state.
#include "runtime/telemetry/trace.h"

#include "runtime/telemetry/timeline.h"

namespace fdl {

void Trace::put(TraceRecord record, std::string_view text, ConstBytes behind) {
  if (record.time_ns == 0) record.time_ns = now_ns();
  record.group = number_;
  timeline_.put(record, text, behind);
}

void Trace::group(std::string_view id, int rank, int size) {
  put({.subject = static_cast<uint64_t>(size), .value = static_cast<uint32_t>(rank), .kind = TraceKind::group}, id);
}

void Trace::submitted(uint64_t serial, const Request& request, int64_t when_ns) {
  put({.time_ns = when_ns,
       .subject = serial,
       .value = static_cast<uint32_t>(request.dtype),
       .kind = TraceKind::submitted,
       .what = static_cast<uint8_t>(request.kind),
       .op = request.op},
      request.name, std::as_bytes(std::span(request.shape)));
}

void Trace::ready(int rank, const Request& request) {
  put({.value = static_cast<uint32_t>(rank),
       .kind = TraceKind::ready,
       .what = static_cast<uint8_t>(request.kind),
       .op = request.op},
      request.name);
}

void Trace::absent(RequestKind kind, std::string_view name) {
  put({.kind = TraceKind::absent, .what = static_cast<uint8_t>(kind)}, name);
}

void Trace::locked(const LockedOrder& order) {
  epoch_ = readiness_of(order.word()).epoch;
  counts_.assign(counts_.size(), 0);
  put({.subject = epoch_, .value = static_cast<uint32_t>(order.buckets().size()), .kind = TraceKind::locked});
}

void Trace::readiness(const LockedOrder& order, const ReadinessFlags& readiness_flags, int size) {
  counts_.resize(static_cast<std::size_t>(size), 0);
  if (readiness_of(order.word()).epoch != epoch_) locked(order);  // the timeline was started while the order was locked
  for (int rank = 0; rank < size; ++rank) {
    const Readiness there = readiness_of(readiness_flags.word_of(rank));
    uint64_t& count = counts_[static_cast<std::size_t>(rank)];
    if (there.epoch != epoch_ || there.count <= count) continue;
    count = there.count;
    put({.subject = count, .value = static_cast<uint32_t>(rank), .kind = TraceKind::readiness_flags});
  }
}

void Trace::collective(Collective collective, const Communicator::Runner& runner) {
  std::array<char, 64> text;
  std::size_t size = 0;
  const auto add = [&](std::string_view word) { size += word.copy(text.data() + size, text.size() - size); };
  add(runner.by.substr(0, 31));  // so that the separator and an algorithm's name always fit
  add(std::string_view("\0", 1));
  add(runner.algorithm);
  put({.value = static_cast<uint32_t>(Activity::collective),
       .kind = TraceKind::activity,
       .what = static_cast<uint8_t>(collective)},
      {text.data(), size});
}

}  // namespace fdl

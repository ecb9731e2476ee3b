// Each rail has one pool of packets: some to send, the others posted as receives.
#include "transports/ofi/ofi_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "transports/ofi/ofi_errors.h"

namespace fdl {
namespace {

constexpr std::size_t kSends = 128;    // packets to send, for each rail
constexpr std::size_t kWrites = 512;   // segments in flight, over all rails
constexpr std::size_t kReceives = 32;  // posted for each peer
constexpr std::size_t kLeastReceives = 64;
constexpr std::size_t kMostReceives = 1024;  // with more peers the provider delays senders
constexpr std::size_t kBatch = 16;           // completions that are read at once
constexpr std::size_t kLongestWrite = std::size_t{1} << 30;

}  // namespace

Result<std::unique_ptr<OfiLink>> OfiLink::make(const OfiLibrary& library, const std::vector<OfiLibrary::Infos>& devices,
                                               int size) {
  auto link = std::unique_ptr<OfiLink>(new OfiLink(library));
  link->operations_ = std::make_unique<OfiOperation[]>(kWrites);
  for (std::size_t i = 0; i < kWrites; ++i) link->free_operations_.push_back(&link->operations_[i]);
  link->longest_write_ = kLongestWrite;
  link->sends_to_.resize(static_cast<std::size_t>(size));
  link->writes_to_.resize(static_cast<std::size_t>(size));
  const std::size_t receives =
      std::clamp(static_cast<std::size_t>(size - 1) * kReceives / devices.size(), kLeastReceives, kMostReceives);
  for (const auto& device : devices) FDL_RETURN_IF_ERROR(link->add(device.get(), receives));
  return link;
}

Status OfiLink::add(const fi_info* device, std::size_t receives) {
  if (device->ep_attr->max_msg_size < kPacketBytes) {
    return Status(Code::unsupported,
                  fmt::format("ofi: {} ({}) takes messages of up to {} bytes, and farandole's packets have {}",
                              device->domain_attr->name, device->fabric_attr->prov_name, device->ep_attr->max_msg_size,
                              kPacketBytes));
  }
  receives = std::min(receives, std::max<std::size_t>(device->rx_attr->size, 1));
  FDL_ASSIGN_OR_RETURN(auto rail, OfiRail::open(library_, device, receives));
  const std::size_t count = kSends + receives;
  Pool pool;
  pool.memory = std::make_unique<std::byte[]>(count * kPacketBytes);
  pool.packets = std::make_unique<OfiPacket[]>(count);
  if (rail->registers_sources()) {
    const ConstBytes all(pool.memory.get(), count * kPacketBytes);
    FDL_ASSIGN_OR_RETURN(pool.region, rail->register_memory(all, false, true));
  }
  for (std::size_t i = 0; i < count; ++i) {
    OfiPacket& packet = pool.packets[i];
    packet.bytes = pool.memory.get() + i * kPacketBytes;
    packet.descriptor = pool.region.descriptor();
    packet.operation.rail = static_cast<uint16_t>(rails_.size());
    packet.operation.kind = i < kSends ? OfiOperation::Kind::send : OfiOperation::Kind::receive;
    (i < kSends ? pool.free : pool.unposted).push_back(&packet);
  }
  longest_write_ = std::min(longest_write_, device->ep_attr->max_msg_size);
  rails_.push_back(std::move(rail));
  pools_.push_back(std::move(pool));
  post_receives(rails_.size() - 1);
  return {};
}

OfiLink::~OfiLink() { close(); }

void OfiLink::close() {
  for (const auto& rail : rails_) rail->close_endpoint();
}

// ---- Sending ----

OfiPacket* OfiLink::take(int peer) {
  auto& free = pools_[static_cast<std::size_t>(peer) % rails_.size()].free;
  if (free.empty()) return nullptr;
  OfiPacket* packet = free.back();
  free.pop_back();
  return packet;
}

void OfiLink::recycle(OfiPacket* packet) {
  --sends_;
  --sends_to_[static_cast<std::size_t>(packet->operation.peer)];
  pools_[packet->operation.rail].free.push_back(packet);
}

void OfiLink::send(OfiPacket* packet, std::size_t length, int peer, bool flush) {
  packet->flush = flush;
  packet->length = length;
  packet->operation.peer = peer;
  ++sends_;
  ++sends_to_[static_cast<std::size_t>(peer)];
  Pool& pool = pools_[packet->operation.rail];
  if (!pool.refused.empty() || !try_send(packet)) pool.refused.push_back(packet);
}

bool OfiLink::send_now(OfiPacket* packet, std::size_t length, int peer) {
  packet->flush = false;
  packet->length = length;
  packet->operation.peer = peer;
  ++sends_;
  ++sends_to_[static_cast<std::size_t>(peer)];
  if (pools_[packet->operation.rail].refused.empty() && try_send(packet)) return true;
  recycle(packet);
  return false;
}

// Returns false if the provider takes no packet now.
bool OfiLink::try_send(OfiPacket* packet) {
  OfiRail& rail = *rails_[packet->operation.rail];
  const int peer = packet->operation.peer;
  const bool inject = !packet->flush && packet->length <= rail.info().tx_attr->inject_size;
  const auto code = inject ? ::fi_inject(rail.endpoint(), packet->bytes, packet->length, rail.peer(peer))
                           : ::fi_send(rail.endpoint(), packet->bytes, packet->length, packet->descriptor,
                                       rail.peer(peer), &packet->operation.context);
  if (code == -FI_EAGAIN) return false;
  if (code != 0) note_failure(peer, packet->operation.rail, "send", code);
  if (code == 0) bytes_given().fetch_add(packet->length, std::memory_order_relaxed);
  if (code != 0 || inject) recycle(packet);
  return true;
}

bool OfiLink::send_refused(std::size_t rail) {
  auto& refused = pools_[rail].refused;
  bool any = false;
  for (; !refused.empty() && try_send(refused.front()); any = true) refused.pop_front();
  return any;
}

bool OfiLink::has_refused() const {
  return std::ranges::any_of(pools_, [](const Pool& pool) { return !pool.refused.empty() || !pool.unposted.empty(); });
}

OfiLink::Outcome OfiLink::write(std::size_t rail, int peer, ConstBytes bytes, void* descriptor, const OfiTarget& target,
                                std::size_t offset, uint32_t data, std::size_t stream, uint64_t position) {
  if (free_operations_.empty()) return Outcome::again;
  OfiOperation* operation = free_operations_.back();
  operation->kind = OfiOperation::Kind::write;
  operation->rail = static_cast<uint16_t>(rail);
  operation->peer = peer;
  operation->stream = stream;
  operation->position = position;
  OfiRail& on = *rails_[rail];
  const auto code = ::fi_writedata(on.endpoint(), bytes.data(), bytes.size(), descriptor, data, on.peer(peer),
                                   target.address + offset, target.key, &operation->context);
  if (code == -FI_EAGAIN) return Outcome::again;
  if (code != 0) {
    note_failure(peer, rail, "write", code);
    return Outcome::failed;
  }
  free_operations_.pop_back();
  bytes_given().fetch_add(bytes.size(), std::memory_order_relaxed);
  ++writes_;
  ++writes_to_[static_cast<std::size_t>(peer)];
  return Outcome::begun;
}

void OfiLink::end_write(OfiOperation* operation) {
  --writes_;
  --writes_to_[static_cast<std::size_t>(operation->peer)];
  free_operations_.push_back(operation);
}

// ---- Failures ----

namespace {

// Codes that are about this rank's device and no peer.
bool is_of_device(int64_t code) { return code == -FI_ENODEV || code == -ENXIO || code == -FI_ENETDOWN; }

}  // namespace

Status OfiLink::failure(std::size_t rail, const char* what, int64_t code, int detail, std::string_view words) const {
  const std::string where = fmt::format("{} on {}", what, rails_[rail]->device());
  return ofi_failure(library_, where, static_cast<int>(code), detail, words, rails_[rail]->provider());
}

void OfiLink::note_failure(int peer, std::size_t rail, const char* what, int64_t code) {
  // A receive that cannot be posted is this rank's own affair.
  if (peer < 0 || is_of_device(code)) pools_[rail].is_lost = true;
  failures_.push_back({is_of_device(code) ? -1 : peer, failure(rail, what, code)});
}

// EFA waits in fi_close() until its device has ended what is in flight; tcp closes its connections. ofi_rxd goes on
// using the memory of what it has not finished.
bool OfiLink::can_cancel() const {
  const std::string_view provider = rails_.front()->provider();
  return provider.starts_with("efa") || provider.starts_with("tcp");
}

// ---- Completions ----

void OfiLink::post_receives(std::size_t rail) {
  auto& unposted = pools_[rail].unposted;
  while (!unposted.empty()) {
    OfiPacket* packet = unposted.back();
    const auto code = ::fi_recv(rails_[rail]->endpoint(), packet->bytes, kPacketBytes, packet->descriptor,
                                FI_ADDR_UNSPEC, &packet->operation.context);
    if (code == -FI_EAGAIN) return;
    if (code != 0) return note_failure(-1, rail, "receive", code);
    unposted.pop_back();
  }
}

bool OfiLink::poll(Events& events) {
  bool any = false;
  for (std::size_t rail = 0; rail < rails_.size(); ++rail) {
    if (pools_[rail].is_lost) continue;  // each call would fail again
    fi_cq_data_entry entries[kBatch];
    while (true) {
      const auto count = ::fi_cq_read(rails_[rail]->completions(), entries, kBatch);
      if (count == -FI_EAGAIN) break;
      any = true;
      if (count == -FI_EAVAIL) {
        complete_error(rail, events);
        continue;
      }
      if (count < 0) {
        pools_[rail].is_lost = true;
        events.on_failure(-1, failure(rail, "the completion queue", count));
        break;
      }
      for (int64_t i = 0; i < count; ++i) complete(rail, entries[i], events);
      if (static_cast<std::size_t>(count) < kBatch) break;
    }
    if (pools_[rail].is_lost) continue;
    post_receives(rail);
    any |= send_refused(rail);
  }
  // A report may lead to calls of this object.
  for (const Failure& failure : std::exchange(failures_, {})) {
    events.on_failure(failure.peer, failure.why);
    any = true;
  }
  return any;
}

void OfiLink::complete(std::size_t rail, const fi_cq_data_entry& entry, Events& events) {
  // A peer has written; the context belongs to no operation of its own. The provider `sockets` marks own writes with
  // FI_REMOTE_CQ_DATA too, so that flag does not tell.
  auto* operation = static_cast<OfiOperation*>(entry.op_context);
  if ((entry.flags & FI_REMOTE_WRITE) != 0) {
    // Where writes consume receives, the context is that of the receive.
    if (operation != nullptr && rails_[rail]->loses_receives()) {
      pools_[rail].unposted.push_back(reinterpret_cast<OfiPacket*>(operation));
    }
    return events.on_landed(static_cast<uint32_t>(entry.data));
  }
  if (operation == nullptr) return;
  switch (operation->kind) {
    case OfiOperation::Kind::receive: {
      auto* packet = reinterpret_cast<OfiPacket*>(operation);
      events.on_packet(ConstBytes(packet->bytes, std::min(entry.len, kPacketBytes)));
      pools_[operation->rail].unposted.push_back(packet);
      break;
    }
    case OfiOperation::Kind::send:
      recycle(reinterpret_cast<OfiPacket*>(operation));
      break;
    case OfiOperation::Kind::write:
      end_write(operation);
      events.on_written(operation->stream, operation->position);
      break;
  }
}

void OfiLink::complete_error(std::size_t rail, Events& events) {
  fi_cq_err_entry entry{};
  fid_cq* completions = rails_[rail]->completions();
  if (::fi_cq_readerr(completions, &entry, 0) < 0) return;
  char buffer[256] = {};
  const char* words = ::fi_cq_strerror(completions, entry.prov_errno, entry.err_data, buffer, sizeof buffer);
  auto* operation = static_cast<OfiOperation*>(entry.op_context);
  const char* what = operation == nullptr                             ? "operation"
                     : operation->kind == OfiOperation::Kind::receive ? "receive"
                     : operation->kind == OfiOperation::Kind::send    ? "send"
                                                                      : "write";
  const Status why = failure(rail, what, -entry.err, entry.prov_errno, words == nullptr ? "" : words);
  if (operation == nullptr) return events.on_failure(-1, why);
  const int peer = is_of_device(-entry.err) ? -1 : operation->peer;
  if (operation->kind == OfiOperation::Kind::receive) {
    pools_[operation->rail].unposted.push_back(reinterpret_cast<OfiPacket*>(operation));
    if (entry.err == FI_ECANCELED) return;
    return events.on_failure(-1, why);
  }
  if (operation->kind == OfiOperation::Kind::send) {
    recycle(reinterpret_cast<OfiPacket*>(operation));
  } else {
    end_write(operation);
  }
  events.on_failure(peer, why);
}

// ---- Waiting ----

bool OfiLink::may_sleep() {
  return std::ranges::all_of(rails_, [](const auto& rail) { return rail->may_sleep(); });
}

}  // namespace fdl

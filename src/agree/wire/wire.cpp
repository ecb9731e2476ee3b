// The wire functions encode and decode control messages with FlatBuffers, and verify the bytes before they read them.
#include "agree/wire/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "agree/control_generated.h"
#include "agree/wire/limits.h"
#include "agree/wire/positions.h"
#include "data/reduce.h"

namespace fdl {
namespace {

// FlatBuffers file identifiers; the reader rejects other kinds of messages by them.
constexpr const char* kRequestsIdentifier = "FDRQ";
constexpr const char* kRelayIdentifier = "FDRL";
constexpr const char* kPlanIdentifier = "FDPL";
constexpr uint64_t kMaxRounds = 1 << 20;
constexpr flatbuffers::uoffset_t kMaxTables = 1 << 20;
constexpr flatbuffers::uoffset_t kMaxDepth = 4;

using Builder = flatbuffers::FlatBufferBuilder;
template <typename T>
using Offset = flatbuffers::Offset<T>;
template <typename T>
using Items = flatbuffers::Offset<flatbuffers::Vector<T>>;

Status malformed(std::string_view what) {
  return Status(Code::transport, fmt::format("malformed control message: {}", what));
}

// ---- Writing ----

// Empty vectors and texts are omitted; the reader restores them as empty.
Items<int64_t> write_numbers(Builder& builder, const std::vector<int64_t>& numbers) {
  return numbers.empty() ? 0 : builder.CreateVector(numbers);
}

Offset<flatbuffers::String> write_text(Builder& builder, const std::string& text) {
  return text.empty() ? 0 : builder.CreateString(text);
}

Offset<wire::Positions> write_positions(Builder& builder, const std::vector<uint32_t>& positions) {
  if (positions.empty()) return 0;
  if (const auto bits = as_bits(positions)) {
    return wire::CreatePositions(builder, bits->first, builder.CreateVector(bits->bits));
  }
  const std::vector<uint16_t> list(positions.begin(), positions.end());
  return wire::CreatePositions(builder, 0, 0, builder.CreateVector(list));
}

Offset<wire::Request> write_request(Builder& builder, const Request& request) {
  const auto name = builder.CreateString(request.name);
  const auto shape = write_numbers(builder, request.shape);
  const auto splits = write_numbers(builder, request.splits);
  const auto group = write_text(builder, request.group);
  return wire::CreateRequest(builder, name, static_cast<uint8_t>(request.kind), static_cast<uint8_t>(request.dtype),
                             request.op, shape, splits, request.root, request.prescale, request.postscale, group,
                             request.group_size, request.priority, request.device, request.place,
                             static_cast<uint8_t>(request.compression));
}

Items<Offset<wire::Request>> write_requests(Builder& builder, const std::vector<Request>& requests) {
  if (requests.empty()) return 0;
  std::vector<Offset<wire::Request>> written;
  written.reserve(requests.size());
  for (const Request& request : requests) written.push_back(write_request(builder, request));
  return builder.CreateVector(written);
}

Offset<wire::Bucket> write_bucket(Builder& builder, const Bucket& bucket, const std::vector<uint32_t>& cached) {
  const auto positions = write_positions(builder, cached);
  const auto names = bucket.names.empty() ? 0 : builder.CreateVectorOfStrings(bucket.names);
  const auto counts = write_numbers(builder, bucket.element_counts);
  const auto rows = write_numbers(builder, bucket.rows);
  const auto error = write_text(builder, bucket.error);
  return wire::CreateBucket(builder, static_cast<uint8_t>(bucket.kind), static_cast<uint8_t>(bucket.dtype), bucket.op,
                            positions, names, counts, rows, bucket.root, bucket.prescale, bucket.postscale,
                            bucket.device, static_cast<int32_t>(bucket.code), error, bucket.culprit, bucket.last_joined,
                            bucket.apart, bucket.launch_with_next, static_cast<uint8_t>(bucket.compression));
}

Items<Offset<wire::Bucket>> write_buckets(Builder& builder, const std::vector<Bucket>& buckets,
                                          const std::vector<std::vector<uint32_t>>& cached) {
  // Intentionally leaked, because the progress thread may run while the process exits.
  static const auto& none_cached = *new std::vector<uint32_t>;
  if (buckets.empty()) return 0;
  std::vector<Offset<wire::Bucket>> written;
  written.reserve(buckets.size());
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    written.push_back(write_bucket(builder, buckets[i], i < cached.size() ? cached[i] : none_cached));
  }
  return builder.CreateVector(written);
}

std::vector<std::byte> bytes_from(const Builder& builder) {
  const auto* begin = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {begin, begin + builder.GetSize()};
}

// ---- Reading ----

// Provides the bytes at an aligned address, by a copy if needed: frames arrive at any address, FlatBuffers needs 8.
class Aligned {
 public:
  explicit Aligned(ConstBytes bytes) : bytes_(bytes) {
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(uint64_t) == 0) return;
    copy_.resize(bytes.size() / sizeof(uint64_t) + 1);
    std::memcpy(copy_.data(), bytes.data(), bytes.size());
    bytes_ = std::as_bytes(std::span(copy_)).first(bytes.size());
  }
  const uint8_t* data() const { return reinterpret_cast<const uint8_t*>(bytes_.data()); }

 private:
  ConstBytes bytes_;
  std::vector<uint64_t> copy_;
};

// Reads one message and limits its unfolded size to its encoded size. FlatBuffers lets many tables share one string or
// vector, so a small malicious message could unfold into a large one. Messages that encode() writes share nothing.
class Reader {
 public:
  explicit Reader(std::size_t message_bytes) : left_(message_bytes) {}

  Status read(const flatbuffers::String* from, std::string& to) {
    if (from == nullptr) return ok_status();
    FDL_RETURN_IF_ERROR(spend(from->size() + sizeof(flatbuffers::uoffset_t)));
    to.assign(from->data(), from->size());
    return ok_status();
  }

  template <typename T>
  Status read(const flatbuffers::Vector<T>* from, std::vector<T>& to) {
    if (from == nullptr) return ok_status();
    FDL_RETURN_IF_ERROR(spend(from->size() * sizeof(T)));
    // The verifier checks the address of a vector's length, not of its elements, which may be unaligned: hence memcpy.
    static_assert(FLATBUFFERS_LITTLEENDIAN);
    to.resize(from->size());
    if (!to.empty()) std::memcpy(to.data(), from->Data(), to.size() * sizeof(T));
    return ok_status();
  }

  Status read(const wire::Positions* from, std::vector<uint32_t>& to);
  Status read(const wire::RelayEntry& from, RelayMessage::Entry& to);
  Status read(const wire::Request& from, Request& to);
  Status read(const flatbuffers::Vector<Offset<wire::Request>>* from, std::vector<Request>& to);
  Status read(const wire::Bucket& from, Bucket& to, std::vector<uint32_t>& cached);
  Status read(const flatbuffers::Vector<Offset<wire::Bucket>>* from, std::vector<Bucket>& to,
              std::vector<std::vector<uint32_t>>& cached);

 private:
  // Counts the bytes that the unfolded message takes.
  Status spend(std::size_t bytes) {
    if (bytes > left_) return malformed("it contains more than its bytes");
    left_ -= bytes;
    return ok_status();
  }

  std::size_t left_;
};

Status Reader::read(const wire::Positions* from, std::vector<uint32_t>& to) {
  if (from == nullptr) return ok_status();
  std::vector<uint8_t> bits;
  std::vector<uint16_t> list;
  FDL_RETURN_IF_ERROR(read(from->bits(), bits));
  FDL_RETURN_IF_ERROR(read(from->list(), list));
  to.assign(list.begin(), list.end());
  if (bits.empty()) return ok_status();
  if (!list.empty()) return malformed("positions are given twice");
  // Check the range before unfolding the bits: one byte of bits becomes many bytes of positions.
  if (from->first() >= kMaxCachePositions || bits.size() > kMaxCachePositions / 8) {
    return malformed("positions are out of range");
  }
  to = positions_in({from->first(), std::move(bits)});
  if (!to.empty() && to.back() >= kMaxCachePositions) return malformed("positions are out of range");
  return ok_status();
}

// Ranges ascend and are disjoint, so that a message unfolds at most once for each rank.
Status Reader::read(const wire::RelayEntry& from, RelayMessage::Entry& to) {
  std::vector<uint32_t> ranks;
  std::vector<uint8_t> message;
  FDL_RETURN_IF_ERROR(spend(sizeof(flatbuffers::uoffset_t)));
  FDL_RETURN_IF_ERROR(read(from.ranks(), ranks));
  FDL_RETURN_IF_ERROR(read(from.message(), message));
  if (ranks.empty() || ranks.size() % 2 != 0) return malformed("a relayed message without ranks");
  uint32_t next = 0;
  for (std::size_t i = 0; i < ranks.size(); i += 2) {
    const uint32_t first = ranks[i];
    const uint32_t count = ranks[i + 1];
    if (first < next || first >= kMaxGroupRanks || count == 0 || count > kMaxGroupRanks - first) {
      return malformed("the ranks of a relayed message are out of range");
    }
    to.ranks.push_back({static_cast<int>(first), static_cast<int>(count)});
    next = first + count;
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(message.data());
  to.message.assign(bytes, bytes + message.size());
  return ok_status();
}

// Accepts what fdl_operation.compression takes.
template <typename Operation>
Status check_compression(const Operation& operation) {
  if (operation.compression == Compression::none) return ok_status();
  const RequestKind kind = operation.kind;
  const bool reduces = kind == RequestKind::allreduce || kind == RequestKind::reduce_scatter;
  const bool adds = operation.op == static_cast<uint8_t>(Op::sum) || operation.op == static_cast<uint8_t>(Op::average);
  const bool takes = kind == RequestKind::allgather || (reduces && adds);
  if (takes && operation.dtype == Dtype::float32 && operation.device < 0) return ok_status();
  return malformed("an operation that cannot be compressed");
}

// Reads what a request and a bucket have in common: the description of an operation.
template <typename From, typename To>
Status read_operation(const From& from, To& to) {
  if (!is_request_kind(from.kind())) return malformed(fmt::format("{} is no kind of operation", from.kind()));
  if (!is_dtype(from.dtype())) return malformed(fmt::format("{} is no dtype", from.dtype()));
  if (!is_compression(from.compression())) return malformed(fmt::format("{} is no compression", from.compression()));
  to.kind = static_cast<RequestKind>(from.kind());
  to.compression = static_cast<Compression>(from.compression());
  to.dtype = static_cast<Dtype>(from.dtype());
  to.op = from.op();
  to.root = from.root();
  to.prescale = from.prescale();
  to.postscale = from.postscale();
  to.device = from.device();
  return check_compression(to);
}

Status Reader::read(const wire::Request& from, Request& to) {
  FDL_RETURN_IF_ERROR(spend(sizeof(flatbuffers::uoffset_t) * 2));
  FDL_RETURN_IF_ERROR(read_operation(from, to));
  FDL_RETURN_IF_ERROR(read(from.name(), to.name));
  FDL_RETURN_IF_ERROR(read(from.shape(), to.shape));
  FDL_RETURN_IF_ERROR(read(from.splits(), to.splits));
  FDL_RETURN_IF_ERROR(read(from.group(), to.group));
  to.group_size = from.group_size();
  to.priority = from.priority();
  to.place = from.place();
  const Status fine = check_request(to);
  return fine.ok() ? fine : malformed(fine.text());
}

Status Reader::read(const flatbuffers::Vector<Offset<wire::Request>>* from, std::vector<Request>& to) {
  if (from == nullptr) return ok_status();
  to.reserve(std::min<std::size_t>(from->size(), 4096));
  for (const wire::Request* request : *from) FDL_RETURN_IF_ERROR(read(*request, to.emplace_back()));
  return ok_status();
}

// Checks the values of a bucket that FlatBuffers cannot check.
Status check_bucket(const Bucket& bucket, const std::vector<uint32_t>& cached) {
  const auto negative = [](int64_t number) { return number < 0 || number > kMaxElements; };
  if (bucket.names.empty() == cached.empty()) return malformed("a bucket without names, or with two sorts of them");
  if (!bucket.element_counts.empty() && bucket.element_counts.size() != bucket.names.size()) {
    return malformed("a bucket with fewer element counts than names");
  }
  if (std::ranges::any_of(bucket.element_counts, negative)) return malformed("an element count is out of range");
  if (std::ranges::any_of(bucket.rows, negative)) return malformed("a number of rows is out of range");
  if (!std::isfinite(bucket.prescale) || !std::isfinite(bucket.postscale)) return malformed("a scale is not finite");
  if ((bucket.code == Code::ok) != bucket.error.empty()) return malformed("an error without text, or the reverse");
  if (bucket.root < -1 || bucket.culprit < -1 || bucket.last_joined < -1) return malformed("a rank is out of range");
  if (bucket.device < -1 || bucket.device > kMaxDevice) return malformed("a device is out of range");
  return ok_status();
}

Status Reader::read(const wire::Bucket& from, Bucket& to, std::vector<uint32_t>& cached) {
  FDL_RETURN_IF_ERROR(spend(sizeof(flatbuffers::uoffset_t) * 2));
  FDL_RETURN_IF_ERROR(read_operation(from, to));
  if (!is_op(from.op())) return malformed(fmt::format("{} is no reduce op", from.op()));
  if (from.code() < 0 || from.code() > static_cast<int32_t>(Code::internal)) return malformed("a code is out of range");
  FDL_RETURN_IF_ERROR(read(from.cached(), cached));
  FDL_RETURN_IF_ERROR(read(from.element_counts(), to.element_counts));
  FDL_RETURN_IF_ERROR(read(from.rows(), to.rows));
  FDL_RETURN_IF_ERROR(read(from.error(), to.error));
  if (from.names() != nullptr) {
    for (const flatbuffers::String* name : *from.names()) FDL_RETURN_IF_ERROR(read(name, to.names.emplace_back()));
  }
  to.code = static_cast<Code>(from.code());
  to.culprit = from.culprit();
  to.last_joined = from.last_joined();
  to.apart = from.apart();
  to.launch_with_next = from.launch_with_next();
  return check_bucket(to, cached);
}

// Whether two neighbours may be in one group launch: both run, on devices of one kind.
bool may_launch_group(const Bucket& one, const Bucket& next) {
  return one.code == Code::ok && next.code == Code::ok && one.device >= 0 && one.device == next.device;
}

Status Reader::read(const flatbuffers::Vector<Offset<wire::Bucket>>* from, std::vector<Bucket>& to,
                    std::vector<std::vector<uint32_t>>& cached) {
  if (from == nullptr) return ok_status();
  for (const wire::Bucket* bucket : *from) {
    FDL_RETURN_IF_ERROR(read(*bucket, to.emplace_back(), cached.emplace_back()));
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i].launch_with_next && (i + 1 == to.size() || !may_launch_group(to[i], to[i + 1]))) {
      return malformed("a bucket is launched with the next one, which cannot join it");
    }
  }
  return ok_status();
}

// A locked order contains neither errors nor joins.
Status check_locked(const Bucket& bucket) {
  if (bucket.code != Code::ok) return malformed("a bucket of a locked order is an error");
  if (bucket.kind == RequestKind::join) return malformed("a bucket of a locked order is a join");
  return ok_status();
}

// Verifies the structure of a message, so that all later reads stay within its bytes.
template <typename Message>
Status verify(const Aligned& aligned, std::size_t size, const char* identifier) {
  if (size > kMaxControlBytes) return malformed(fmt::format("{} bytes are too many", size));
  if (size < 2 * sizeof(flatbuffers::uoffset_t)) return malformed(fmt::format("{} bytes are too few", size));
  flatbuffers::Verifier verifier(aligned.data(), size, kMaxDepth, kMaxTables);
  if (!verifier.VerifyBuffer<Message>(identifier)) return malformed("its structure is damaged");
  return ok_status();
}

}  // namespace

std::vector<std::byte> encode(const RequestMessage& message) {
  Builder builder;
  const auto cached = write_positions(builder, message.cached);
  const auto requests = write_requests(builder, message.requests);
  builder.Finish(wire::CreateRequestMessage(builder, message.acknowledged, cached, requests, message.frozen.has_value(),
                                            message.frozen.value_or(0), message.shares_device),
                 kRequestsIdentifier);
  return bytes_from(builder);
}

std::vector<std::byte> encode(const RelayMessage& message) {
  Builder builder;
  std::vector<Offset<wire::RelayEntry>> entries;
  for (const RelayMessage::Entry& entry : message.entries) {
    std::vector<uint32_t> ranks;
    for (const RankRange& range : entry.ranks) {
      ranks.insert(ranks.end(), {static_cast<uint32_t>(range.first), static_cast<uint32_t>(range.count)});
    }
    const auto* bytes = reinterpret_cast<const uint8_t*>(entry.message.data());
    const auto written = builder.CreateVector(bytes, entry.message.size());
    entries.push_back(wire::CreateRelayEntry(builder, builder.CreateVector(ranks), written));
  }
  builder.Finish(wire::CreateRelayMessage(builder, builder.CreateVector(entries)), kRelayIdentifier);
  return bytes_from(builder);
}

std::vector<std::byte> encode(const PlanMessage& message) {
  Builder builder;
  const auto buckets = write_buckets(builder, message.plan.buckets, message.cached);
  const auto locked = write_buckets(builder, message.plan.locked, message.cached_locked);
  const auto positions = write_positions(builder, message.cache_positions);
  const auto requests = write_requests(builder, message.cache_requests);
  const std::optional<Frozen>& counts = message.plan.frozen;
  const auto frozen = counts ? wire::CreateFrozen(builder, counts->least, counts->greatest) : 0;
  const std::optional<BucketCut>& limits = message.plan.cut;
  const auto cut = limits ? wire::CreateBucketCut(builder, limits->bucket_bytes, limits->alone_bytes) : 0;
  builder.Finish(
      wire::CreatePlanMessage(builder, message.number, buckets, positions, requests, locked, message.plan.freeze,
                              frozen, message.plan.rounds, cut, message.plan.order_ended, message.plan.takes_turns),
      kPlanIdentifier);
  return bytes_from(builder);
}

Result<RequestMessage> decode_requests(ConstBytes bytes) {
  const Aligned aligned(bytes);
  FDL_RETURN_IF_ERROR(verify<wire::RequestMessage>(aligned, bytes.size(), kRequestsIdentifier));
  const auto* from = flatbuffers::GetRoot<wire::RequestMessage>(aligned.data());
  Reader reader(bytes.size());
  RequestMessage message;
  message.acknowledged = from->acknowledged();
  FDL_RETURN_IF_ERROR(reader.read(from->cached(), message.cached));
  FDL_RETURN_IF_ERROR(reader.read(from->requests(), message.requests));
  if (from->frozen()) message.frozen = from->begun();
  message.shares_device = from->shares_device();
  return message;
}

Result<RelayMessage> decode_relayed(ConstBytes bytes) {
  const Aligned aligned(bytes);
  FDL_RETURN_IF_ERROR(verify<wire::RelayMessage>(aligned, bytes.size(), kRelayIdentifier));
  const auto* from = flatbuffers::GetRoot<wire::RelayMessage>(aligned.data());
  RelayMessage message;
  if (from->entries() == nullptr) return message;
  Reader reader(bytes.size());
  for (const wire::RelayEntry* entry : *from->entries()) {
    FDL_RETURN_IF_ERROR(reader.read(*entry, message.entries.emplace_back()));
  }
  return message;
}

Result<PlanMessage> decode_plan(ConstBytes bytes) {
  const Aligned aligned(bytes);
  FDL_RETURN_IF_ERROR(verify<wire::PlanMessage>(aligned, bytes.size(), kPlanIdentifier));
  const auto* from = flatbuffers::GetRoot<wire::PlanMessage>(aligned.data());
  Reader reader(bytes.size());
  PlanMessage message;
  message.number = from->number();
  message.plan.freeze = from->freeze();
  if (from->frozen() != nullptr) message.plan.frozen = {from->frozen()->least(), from->frozen()->greatest()};
  message.plan.rounds = from->rounds();
  message.plan.order_ended = from->order_ended();
  message.plan.takes_turns = from->takes_turns();
  if (from->cut() != nullptr) message.plan.cut = {from->cut()->bucket_bytes(), from->cut()->alone_bytes()};
  if (message.plan.rounds > kMaxRounds) return malformed("a locked order has too many rounds");
  FDL_RETURN_IF_ERROR(reader.read(from->buckets(), message.plan.buckets, message.cached));
  FDL_RETURN_IF_ERROR(reader.read(from->locked(), message.plan.locked, message.cached_locked));
  for (const Bucket& bucket : message.plan.locked) FDL_RETURN_IF_ERROR(check_locked(bucket));
  FDL_RETURN_IF_ERROR(reader.read(from->cache_positions(), message.cache_positions));
  FDL_RETURN_IF_ERROR(reader.read(from->cache_requests(), message.cache_requests));
  if (message.cache_positions.size() != message.cache_requests.size()) {
    return malformed("cache positions and requests differ in number");
  }
  return message;
}

}  // namespace fdl

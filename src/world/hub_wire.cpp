// Hub wire: FlatBuffers in sealed frames.
#include "world/hub_wire.h"

#include <algorithm>

#include "system/handshake.h"
#include "world/hub_generated.h"

namespace fdl {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

constexpr std::size_t kSealBytes = 16;
constexpr std::size_t kMostStory = 16384;

Offset<hub_wire::Failure> encode_failure(FlatBufferBuilder& builder, const Status& why) {
  if (why.ok()) return {};
  const Error& error = why.error();
  // However long a story is, its message fits into a frame.
  const auto add = [&](const std::string& text) { return builder.CreateString(text.substr(0, kMostStory)); };
  const auto text = add(error.text);
  const auto host = add(error.culprit_host);
  const auto operation = add(error.operation);
  const auto phase = add(error.phase);
  const auto group = add(error.group);
  return hub_wire::CreateFailure(builder, static_cast<int>(error.code), text, error.culprit_rank, host, operation,
                                 phase, group);
}

std::string text_of(const flatbuffers::String* text) { return text == nullptr ? std::string() : text->str(); }

using Terms = Offset<flatbuffers::Vector<Offset<hub_wire::Term>>>;

Terms encode_terms(FlatBufferBuilder& builder, const std::vector<Term>& terms) {
  if (terms.empty()) return {};
  std::vector<Offset<hub_wire::Term>> encoded;
  for (const Term& term : terms) {
    const auto name = builder.CreateString(term.name);
    const auto value = builder.CreateString(term.value);
    encoded.push_back(hub_wire::CreateTerm(builder, name, value, builder.CreateString(term.remedy)));
  }
  return builder.CreateVector(encoded);
}

// False: a failure with a code that does not exist.
bool decode_failure(const hub_wire::Failure* failure, Status& why) {
  if (failure == nullptr) return true;
  if (failure->code() <= static_cast<int>(Code::ok) || failure->code() > static_cast<int>(Code::internal)) return false;
  why = Status(Error{.code = static_cast<Code>(failure->code()),
                     .text = text_of(failure->text()),
                     .culprit_rank = failure->culprit_rank(),
                     .culprit_host = text_of(failure->culprit_host()),
                     .operation = text_of(failure->operation()),
                     .phase = text_of(failure->phase()),
                     .group = text_of(failure->group())});
  return true;
}

std::vector<Term> decode_terms(const hub_wire::Member& member) {
  std::vector<Term> terms;
  if (member.terms() == nullptr) return terms;
  for (const hub_wire::Term* term : *member.terms()) {
    terms.push_back({text_of(term->name()), text_of(term->value()), text_of(term->remedy())});
  }
  return terms;
}

bool is_kind(uint8_t kind) {
  using Kind = HubMessage::Kind;
  return (kind >= static_cast<uint8_t>(Kind::hello) && kind <= static_cast<uint8_t>(Kind::told)) ||
         (kind >= static_cast<uint8_t>(Kind::welcome) && kind <= static_cast<uint8_t>(Kind::answer));
}

std::string bytes_of_number(uint64_t number, std::size_t bytes) {
  return std::string(reinterpret_cast<const char*>(&number), bytes);  // little-endian, as every machine we run on
}

// The second half of the digest is not sent; zeros stand for it on both sides of the comparison.
Digest seal_of(std::string_view key, Direction direction, uint64_t sequence, std::string_view payload) {
  std::string message;
  message.reserve(9 + payload.size());
  message += bytes_of_number(static_cast<uint8_t>(direction), 1);
  message += bytes_of_number(sequence, 8);
  message += payload;
  Digest digest = hmac_sha256(key, message);
  std::fill(digest.begin() + kSealBytes, digest.end(), uint8_t{0});
  return digest;
}

}  // namespace

std::string encode(const HubMessage& message) {
  FlatBufferBuilder builder(256 + message.value.size());
  std::vector<Offset<hub_wire::Member>> members;
  members.reserve(message.members.size());
  for (const HubLink::Hello& member : message.members) {
    const auto host = builder.CreateString(member.host_name);
    const auto boot = builder.CreateString(member.boot_id);
    const auto terms = encode_terms(builder, member.terms);
    members.push_back(hub_wire::CreateMember(builder, member.rank, member.size, host, boot, member.process_id, terms,
                                             member.numa_node));
  }
  const auto all_members = builder.CreateVector(members);
  const auto ranks = builder.CreateVector(message.ranks);
  const auto key = builder.CreateString(message.key);
  const auto value = builder.CreateVector(reinterpret_cast<const uint8_t*>(message.value.data()), message.value.size());
  const auto why = encode_failure(builder, message.why);
  const auto root = hub_wire::CreateMessage(builder, static_cast<uint8_t>(message.kind), message.id, message.number,
                                            message.rank, ranks, key, value, why, all_members);
  hub_wire::FinishMessageBuffer(builder, root);
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

Result<HubMessage> decode(std::string_view payload) {
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(payload.data()), payload.size());
  if (payload.size() < 8 || !hub_wire::VerifyMessageBuffer(verifier)) {
    return Status(Code::transport, "hub: a frame without a valid message");
  }
  const hub_wire::Message& wire = *hub_wire::GetMessage(payload.data());
  if (!is_kind(wire.kind())) return Status(Code::transport, "hub: a message of unknown kind");
  HubMessage message;
  message.kind = static_cast<HubMessage::Kind>(wire.kind());
  message.id = wire.id();
  message.number = wire.number();
  message.rank = wire.rank();
  if (wire.ranks() != nullptr) message.ranks.assign(wire.ranks()->begin(), wire.ranks()->end());
  message.key = text_of(wire.key());
  if (wire.value() != nullptr) message.value.assign(wire.value()->begin(), wire.value()->end());
  if (!decode_failure(wire.why(), message.why)) return Status(Code::transport, "hub: a failure without a valid code");
  if (wire.members() != nullptr) {
    for (const hub_wire::Member* member : *wire.members()) {
      message.members.push_back({member->rank(), member->size(), text_of(member->host_name()),
                                 text_of(member->boot_id()), member->process_id(), decode_terms(*member),
                                 member->numa_node()});
    }
  }
  return message;
}

std::string FrameSealer::seal(std::string_view payload) {
  FDL_CHECK(payload.size() <= most_payload(direction_));
  const Digest seal = seal_of(key_, direction_, sequence_++, payload);
  std::string frame = bytes_of_number(payload.size(), 4);
  frame.append(reinterpret_cast<const char*>(seal.data()), kSealBytes);
  frame += payload;
  return frame;
}

void FrameOpener::feed(std::string_view bytes) {
  buffer_.erase(0, std::exchange(taken_, 0));
  buffer_ += bytes;
}

Result<std::optional<std::string_view>> FrameOpener::next() {
  using Payload = std::optional<std::string_view>;
  const std::string_view rest = std::string_view(buffer_).substr(taken_);
  if (rest.size() < 4) return Payload();
  uint32_t length = 0;
  std::memcpy(&length, rest.data(), sizeof length);
  if (length > most_payload(direction_)) return Status(Code::transport, "hub: a frame that is too long");
  if (rest.size() < kFrameHead + length) return Payload();
  const std::string_view payload = rest.substr(kFrameHead, length);
  Digest claimed{};
  std::memcpy(claimed.data(), rest.data() + 4, kSealBytes);
  if (!equal_in_constant_time(claimed, seal_of(key_, direction_, sequence_, payload))) {
    return Status(Code::authentication, "hub: a frame with a wrong seal");
  }
  ++sequence_;
  taken_ += kFrameHead + length;
  return Payload(payload);
}

}  // namespace fdl

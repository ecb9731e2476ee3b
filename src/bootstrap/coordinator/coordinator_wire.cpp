// Messages are encoded as FlatBuffers and sent in sealed frames.
#include "bootstrap/coordinator/coordinator_wire.h"

#include <algorithm>

#include "bootstrap/coordinator_generated.h"
#include "bootstrap/rendezvous/member_table_wire.h"

namespace fdl {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

constexpr std::size_t kSealBytes = 16;
constexpr std::size_t kMostFailureText = 16384;

Offset<coordinator_wire::Failure> encode_failure(FlatBufferBuilder& builder, const Status& why) {
  if (why.ok()) return {};
  const Error& error = why.error();
  // Cut each text, so that the message always fits into a frame.
  const auto add = [&](const std::string& text) { return builder.CreateString(text.substr(0, kMostFailureText)); };
  const auto text = add(error.text);
  const auto host = add(error.culprit_host);
  const auto operation = add(error.operation);
  const auto phase = add(error.phase);
  const auto group = add(error.group);
  return coordinator_wire::CreateFailure(builder, static_cast<int>(error.code), text, error.culprit_rank, host,
                                         operation, phase, group);
}

// Provides a payload at an aligned address, by a copy if needed: frames arrive at any address, FlatBuffers needs 8.
class AlignedPayload {
 public:
  explicit AlignedPayload(std::string_view payload) : data_(reinterpret_cast<const uint8_t*>(payload.data())) {
    if (reinterpret_cast<std::uintptr_t>(payload.data()) % alignof(uint64_t) == 0) return;
    copy_.resize(payload.size() / sizeof(uint64_t) + 1);  // never empty: memcpy takes no null pointer
    std::memcpy(copy_.data(), payload.data(), payload.size());
    data_ = reinterpret_cast<const uint8_t*>(copy_.data());
  }
  const uint8_t* data() const { return data_; }

 private:
  const uint8_t* data_;
  std::vector<uint64_t> copy_;
};

using Settings = Offset<flatbuffers::Vector<Offset<coordinator_wire::Setting>>>;

Settings encode_settings(FlatBufferBuilder& builder, const std::vector<CompatibilitySetting>& settings) {
  if (settings.empty()) return {};
  std::vector<Offset<coordinator_wire::Setting>> encoded;
  for (const CompatibilitySetting& setting : settings) {
    const auto name = builder.CreateString(setting.name);
    const auto value = builder.CreateString(setting.value);
    encoded.push_back(coordinator_wire::CreateSetting(builder, name, value, builder.CreateString(setting.remedy)));
  }
  return builder.CreateVector(encoded);
}

// Returns false for a failure whose code does not exist.
bool decode_failure(const coordinator_wire::Failure* failure, Budget& budget, Status& why) {
  if (failure == nullptr) return true;
  if (failure->code() <= static_cast<int>(Code::ok) || failure->code() > static_cast<int>(Code::internal)) return false;
  why = Status(Error{.code = static_cast<Code>(failure->code()),
                     .text = budget.text_of(failure->text()),
                     .culprit_rank = failure->culprit_rank(),
                     .culprit_host = budget.text_of(failure->culprit_host()),
                     .operation = budget.text_of(failure->operation()),
                     .phase = budget.text_of(failure->phase()),
                     .group = budget.text_of(failure->group())});
  return true;
}

std::vector<CompatibilitySetting> decode_settings(const coordinator_wire::Member& member, Budget& budget) {
  std::vector<CompatibilitySetting> settings;
  if (member.settings() == nullptr) return settings;
  for (const coordinator_wire::Setting* setting : *member.settings()) {
    if (!budget.spend()) break;
    settings.push_back(
        {budget.text_of(setting->name()), budget.text_of(setting->value()), budget.text_of(setting->remedy())});
  }
  return settings;
}

using Waits = Offset<flatbuffers::Vector<Offset<coordinator_wire::Wait>>>;

// Texts and lists are cut to the limits of RankState, so that a state always fits into a frame.
Waits encode_waits(FlatBufferBuilder& builder, const std::vector<RankState::Wait>& waits) {
  std::vector<Offset<coordinator_wire::Wait>> encoded;
  const auto add = [&](const std::string& text) { return builder.CreateString(text.substr(0, RankState::kMostText)); };
  for (const RankState::Wait& wait : waits) {
    if (encoded.size() == RankState::kMostWaits) break;
    const auto group = add(wait.group);
    const auto operation = add(wait.operation);
    const auto phase = add(wait.phase);
    const auto ranks = builder.CreateVector(wait.ranks.data(), std::min(wait.ranks.size(), RankState::kMostRanks));
    encoded.push_back(coordinator_wire::CreateWait(builder, group, operation, phase, ranks, wait.waited_ns));
  }
  return builder.CreateVector(encoded);
}

using Agreements = Offset<flatbuffers::Vector<Offset<coordinator_wire::Agreement>>>;

Agreements encode_agreements(FlatBufferBuilder& builder, const std::vector<RankState::Agreement>& agreements) {
  if (agreements.empty()) return {};
  std::vector<Offset<coordinator_wire::Agreement>> encoded;
  const auto add = [&](const std::string& text) { return builder.CreateString(text.substr(0, RankState::kMostText)); };
  for (const RankState::Agreement& agreement : agreements) {
    if (encoded.size() == RankState::kMostWaits) break;
    const auto group = add(agreement.group);
    encoded.push_back(coordinator_wire::CreateAgreement(builder, group, add(agreement.text)));
  }
  return builder.CreateVector(encoded);
}

std::vector<RankState::Agreement> decode_agreements(
    const flatbuffers::Vector<Offset<coordinator_wire::Agreement>>* agreements, Budget& budget) {
  std::vector<RankState::Agreement> decoded;
  if (agreements == nullptr) return decoded;
  for (const coordinator_wire::Agreement* agreement : *agreements) {
    if (!budget.spend() || decoded.size() == RankState::kMostWaits) break;
    decoded.push_back({budget.text_of(agreement->group()), budget.text_of(agreement->text())});
  }
  return decoded;
}

Offset<coordinator_wire::RankState> encode_state(FlatBufferBuilder& builder, const std::optional<RankState>& state) {
  if (!state) return {};
  const auto operations = encode_waits(builder, state->operations);
  const auto names = encode_waits(builder, state->names);
  const auto agreements = encode_agreements(builder, state->agreements);
  Offset<flatbuffers::String> stacks;
  if (!state->stacks.empty()) stacks = builder.CreateString(state->stacks.substr(0, RankState::kMostStacks));
  return coordinator_wire::CreateRankState(builder, operations, names, state->begun_ordered, state->begun_named,
                                           state->left_out, agreements, stacks);
}

std::vector<RankState::Wait> decode_waits(const flatbuffers::Vector<Offset<coordinator_wire::Wait>>* waits,
                                          Budget& budget) {
  std::vector<RankState::Wait> decoded;
  if (waits == nullptr) return decoded;
  for (const coordinator_wire::Wait* wait : *waits) {
    if (!budget.spend() || decoded.size() == RankState::kMostWaits) break;
    RankState::Wait& one = decoded.emplace_back();
    one.group = budget.text_of(wait->group());
    one.operation = budget.text_of(wait->operation());
    one.phase = budget.text_of(wait->phase());
    one.waited_ns = wait->waited_ns();
    if (wait->ranks() == nullptr || !budget.spend(wait->ranks()->size() * sizeof(int))) continue;
    one.ranks.assign(wait->ranks()->begin(), wait->ranks()->end());
  }
  return decoded;
}

bool is_kind(uint8_t kind) {
  using Kind = CoordinatorMessage::Kind;
  return (kind >= static_cast<uint8_t>(Kind::hello) && kind <= static_cast<uint8_t>(Kind::set_up_reply)) ||
         (kind >= static_cast<uint8_t>(Kind::welcome) && kind <= static_cast<uint8_t>(Kind::set_up_query));
}

std::string bytes_of_number(uint64_t number, std::size_t bytes) {
  return std::string(reinterpret_cast<const char*>(&number), bytes);  // little-endian, as all supported machines
}

// `kind`: a direction, or one with kDigested. The second half of the digest is not sent; both sides of the comparison
// have zeros there.
Digest seal_of(std::string_view key, uint8_t kind, uint64_t sequence, std::string_view text) {
  std::string message;
  message.reserve(9 + text.size());
  message += bytes_of_number(kind, 1);
  message += bytes_of_number(sequence, 8);
  message += text;
  Digest digest = hmac_sha256(key, message);
  std::fill(digest.begin() + kSealBytes, digest.end(), uint8_t{0});
  return digest;
}

constexpr uint8_t kDigested = 128;

Digest seal_of_digest(std::string_view key, Direction direction, uint64_t sequence, const Digest& digest) {
  return seal_of(key, static_cast<uint8_t>(direction) | kDigested, sequence, as_text(digest));
}

Digest seal_of_payload(std::string_view key, Direction direction, uint64_t sequence, std::string_view payload) {
  if (payload.size() >= EncodedMessage::kLong) return seal_of_digest(key, direction, sequence, sha256(payload));
  return seal_of(key, static_cast<uint8_t>(direction), sequence, payload);
}

}  // namespace

std::string encode(const CoordinatorMessage& message) {
  FlatBufferBuilder builder(256 + message.value.size());
  std::vector<Offset<coordinator_wire::Member>> members;
  members.reserve(message.members.size());
  for (const CoordinatorClient::Hello& member : message.members) {
    const auto host = builder.CreateString(member.host_name);
    const auto boot = builder.CreateString(member.boot_id);
    const auto settings = encode_settings(builder, member.settings);
    const auto recovery = builder.CreateString(member.recovery);
    const auto salt = builder.CreateString(member.salt);
    Offset<flatbuffers::String> location;
    if (!member.location.empty()) location = builder.CreateString(member.location);
    members.push_back(coordinator_wire::CreateMember(builder, member.rank, member.size, host, boot, member.process_id,
                                                     settings, member.numa_node, member.efa, recovery, salt, location));
  }
  // Most messages are short: what they do not use takes no bytes.
  Offset<flatbuffers::Vector<Offset<coordinator_wire::Member>>> all_members;
  Offset<flatbuffers::Vector<int>> ranks;
  Offset<flatbuffers::String> key;
  Offset<flatbuffers::Vector<uint8_t>> value;
  if (!members.empty()) all_members = builder.CreateVector(members);
  if (!message.ranks.empty()) ranks = builder.CreateVector(message.ranks);
  if (!message.key.empty()) key = builder.CreateString(message.key);
  if (!message.value.empty()) {
    value = builder.CreateVector(reinterpret_cast<const uint8_t*>(message.value.data()), message.value.size());
  }
  const auto why = encode_failure(builder, message.why);
  const auto state = encode_state(builder, message.state);
  const auto table = encode_table(builder, message.table);
  const auto hosts = encode_hosts(builder, message.hosts);
  const auto values = encode_texts(builder, message.values);
  const auto root =
      coordinator_wire::CreateMessage(builder, static_cast<uint8_t>(message.kind), message.id, message.number,
                                      message.rank, ranks, key, value, why, all_members, state, table, hosts, values);
  coordinator_wire::FinishMessageBuffer(builder, root);
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

// A message without another reference goes to one peer, and is not kept.
SharedMessage MessageEncoder::encode(const std::shared_ptr<const CoordinatorMessage>& message) {
  if (const auto known = shared_.find(message); known != shared_.end()) return known->second;
  ++encoded_;
  auto encoded = std::make_shared<const EncodedMessage>(fdl::encode(*message));
  if (message.use_count() > 1) shared_.emplace(message, encoded);
  return encoded;
}

Result<CoordinatorMessage> decode(std::string_view payload) {
  const AlignedPayload aligned(payload);
  flatbuffers::Verifier verifier(aligned.data(), payload.size());
  if (payload.size() < 8 || !coordinator_wire::VerifyMessageBuffer(verifier)) {
    return Status(Code::transport, "coordinator: a frame without a valid message");
  }
  const coordinator_wire::Message& wire = *coordinator_wire::GetMessage(aligned.data());
  if (!is_kind(wire.kind())) return Status(Code::transport, "coordinator: a message of unknown kind");
  CoordinatorMessage message;
  message.kind = static_cast<CoordinatorMessage::Kind>(wire.kind());
  message.id = wire.id();
  message.number = wire.number();
  message.rank = wire.rank();
  if (wire.ranks() != nullptr) message.ranks.assign(wire.ranks()->begin(), wire.ranks()->end());
  Budget budget(payload.size());
  message.key = budget.text_of(wire.key());
  if (wire.value() != nullptr) message.value.assign(wire.value()->begin(), wire.value()->end());
  if (!decode_failure(wire.why(), budget, message.why))
    return Status(Code::transport, "coordinator: a failure without a valid code");
  if (wire.members() != nullptr) {
    for (const coordinator_wire::Member* member : *wire.members()) {
      if (!budget.spend()) break;
      message.members.push_back(
          {member->rank(), member->size(), budget.text_of(member->host_name()), budget.text_of(member->boot_id()),
           member->process_id(), decode_settings(*member, budget), member->numa_node(), member->efa(),
           budget.text_of(member->recovery()), budget.text_of(member->salt()), budget.text_of(member->location())});
    }
  }
  if (const coordinator_wire::RankState* state = wire.state(); state != nullptr) {
    RankState& decoded = message.state.emplace();
    decoded.operations = decode_waits(state->operations(), budget);
    decoded.names = decode_waits(state->names(), budget);
    decoded.begun_ordered = state->begun_ordered();
    decoded.begun_named = state->begun_named();
    decoded.left_out = state->left_out();
    decoded.agreements = decode_agreements(state->agreements(), budget);
    decoded.stacks = budget.text_of(state->stacks());
  }
  if (!decode_table(wire.table(), budget, message.table) || !decode_hosts(wire.hosts(), budget, message.hosts)) {
    return Status(Code::transport, "coordinator: a list of hosts without valid ranks");
  }
  message.values = budget.texts_of(wire.values());
  if (budget.is_exceeded())
    return Status(Code::transport, "coordinator: a message describes more elements than its bytes allow");
  return message;
}

std::string FrameSealer::seal(std::string_view payload) {
  FDL_CHECK(payload.size() <= most_payload(direction_));
  return head(payload.size(), seal_of_payload(key_, direction_, sequence_++, payload)).append(payload);
}

std::string FrameSealer::head_of(const EncodedMessage& message) {
  const std::string& payload = message.bytes();
  FDL_CHECK(payload.size() <= most_payload(direction_));
  return head(payload.size(), message.is_long() ? seal_of_digest(key_, direction_, sequence_++, message.digest())
                                                : seal_of_payload(key_, direction_, sequence_++, payload));
}

std::string FrameSealer::head(std::size_t bytes, const Digest& seal) {
  return bytes_of_number(bytes, 4).append(reinterpret_cast<const char*>(seal.data()), kSealBytes);
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
  if (length > most_payload(direction_)) return Status(Code::transport, "coordinator: a frame that is too long");
  if (rest.size() < kFrameHead + length) return Payload();
  const std::string_view payload = rest.substr(kFrameHead, length);
  Digest claimed{};
  std::memcpy(claimed.data(), rest.data() + 4, kSealBytes);
  if (!equal_in_constant_time(claimed, seal_of_payload(key_, direction_, sequence_, payload))) {
    return Status(Code::authentication, "coordinator: a frame with a wrong seal");
  }
  ++sequence_;
  taken_ += kFrameHead + length;
  return Payload(payload);
}

}  // namespace fdl

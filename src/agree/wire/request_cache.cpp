// RequestCache maps requests to small numbers that are the same on all ranks.
#include "agree/wire/request_cache.h"

#include <algorithm>
#include <functional>

namespace fdl {
namespace {

// Covers only the fields that usually differ; find() compares whole requests when hashes are equal.
std::size_t hash_of(const Request& request) {
  std::size_t hash = std::hash<std::string>()(request.name);
  const auto mix = [&hash](std::size_t value) { hash = (hash ^ value) * 0x9e3779b97f4a7c15u; };
  mix(static_cast<std::size_t>(request.kind) << 8 | static_cast<std::size_t>(request.dtype));
  for (const int64_t dimension : request.shape) mix(static_cast<std::size_t>(dimension));
  for (const int64_t split : request.splits) mix(static_cast<std::size_t>(split));
  mix(static_cast<std::size_t>(request.root));
  return hash;
}

}  // namespace

RequestCache::RequestCache(std::size_t capacity) : entries_(capacity) {}

std::optional<uint32_t> RequestCache::find(const Request& request) const {
  const auto [begin, end] = by_hash_.equal_range(hash_of(request));
  for (auto found = begin; found != end; ++found) {
    if (*entries_[found->second].request == request) return found->second;
  }
  return std::nullopt;
}

std::optional<uint32_t> RequestCache::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

const Request* RequestCache::at(uint32_t position) const {
  if (position >= entries_.size() || !entries_[position].request) return nullptr;
  return &*entries_[position].request;
}

std::optional<uint32_t> RequestCache::choose_position(const std::vector<bool>& pinned) const {
  // An entry is only ever removed to be replaced, so the positions in use are the first ones.
  if (size_ < entries_.size()) return static_cast<uint32_t>(size_);
  for (const uint32_t position : turns_) {
    if (!pinned[position]) return position;
  }
  return std::nullopt;
}

void RequestCache::put(uint32_t position, Request request) {
  FDL_CHECK(position < entries_.size());
  remove(position);
  Entry& entry = entries_[position];
  entry.hash = hash_of(request);
  entry.turn = turns_.insert(turns_.end(), position);
  by_hash_.emplace(entry.hash, position);
  by_name_[request.name] = position;
  entry.request = std::move(request);
  ++size_;
}

void RequestCache::remove(uint32_t position) {
  Entry& entry = entries_[position];
  if (!entry.request) return;
  const auto [begin, end] = by_hash_.equal_range(entry.hash);
  by_hash_.erase(std::find_if(begin, end, [&](const auto& pair) { return pair.second == position; }));
  const auto named = by_name_.find(entry.request->name);
  if (named != by_name_.end() && named->second == position) by_name_.erase(named);
  turns_.erase(entry.turn);
  entry.request.reset();
  --size_;
}

void RequestCache::touch(uint32_t position) {
  FDL_CHECK(at(position) != nullptr);
  turns_.splice(turns_.end(), turns_, entries_[position].turn);
}

bool RequestCache::operator==(const RequestCache& other) const {
  return std::ranges::equal(entries_, other.entries_, {}, &Entry::request, &Entry::request);
}

}  // namespace fdl

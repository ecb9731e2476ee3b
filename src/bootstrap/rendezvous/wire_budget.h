// Budget limits the decoded bytes of a message to its encoded bytes.
//
// FlatBuffers lets many tables share one string, so a small malicious message could unfold into a large one. Messages
// that encode() writes share nothing.
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <string>
#include <vector>

namespace fdl {

class Budget {
 public:
  explicit Budget(std::size_t bytes) : left_(bytes) {}
  bool is_exceeded() const { return exceeded_; }

  std::string text_of(const flatbuffers::String* text) {
    return text == nullptr || !spend(text->size() + sizeof(flatbuffers::uoffset_t)) ? std::string() : text->str();
  }
  template <typename T>
  std::vector<T> numbers_of(const flatbuffers::Vector<T>* numbers) {
    if (numbers == nullptr || !spend(numbers->size() * sizeof(T))) return {};
    return {numbers->begin(), numbers->end()};
  }
  std::vector<std::string> texts_of(const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* texts) {
    std::vector<std::string> decoded;
    if (texts == nullptr || !spend(texts->size() * sizeof(flatbuffers::uoffset_t))) return decoded;
    for (const flatbuffers::String* text : *texts) {
      if (exceeded_) break;
      decoded.push_back(text_of(text));
    }
    return decoded;
  }
  // A table has at least its offset in a vector, and the offset of its vtable.
  bool spend(std::size_t bytes = 2 * sizeof(flatbuffers::uoffset_t)) {
    exceeded_ = exceeded_ || bytes > left_;
    if (!exceeded_) left_ -= bytes;
    return !exceeded_;
  }

 private:
  std::size_t left_;
  bool exceeded_ = false;
};

}  // namespace fdl

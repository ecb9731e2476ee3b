// The parser has one function for each kind of value.
#include "bootstrap/launchers/json.h"

#include <fmt/core.h>

namespace fdl {
namespace {

constexpr int kDeepest = 16;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<Json> read_all() {
    FDL_ASSIGN_OR_RETURN(Json value, read_value(0));
    skip_space();
    if (at_ != text_.size()) return refuse();
    return value;
  }

 private:
  Status refuse() const { return Status(Code::invalid_argument, fmt::format("invalid JSON at character {}", at_ + 1)); }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool take(char expected) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != expected) return false;
    ++at_;
    return true;
  }

  Result<Json> read_value(int depth) {
    skip_space();
    if (depth > kDeepest || at_ == text_.size()) return refuse();
    if (text_[at_] == '{') return read_object(depth);
    if (text_[at_] == '[') return read_list(depth);
    if (text_[at_] != '"') return read_word();
    Json value{.kind = Json::Kind::text, .text = {}, .items = {}, .members = {}};
    FDL_ASSIGN_OR_RETURN(value.text, read_text());
    return value;
  }

  Result<Json> read_object(int depth) {
    Json value{.kind = Json::Kind::object, .text = {}, .items = {}, .members = {}};
    take('{');
    if (take('}')) return value;
    do {
      skip_space();
      FDL_ASSIGN_OR_RETURN(std::string name, read_text());
      if (!take(':')) return refuse();
      FDL_ASSIGN_OR_RETURN(Json member, read_value(depth + 1));
      value.members.push_back({std::move(name), std::move(member)});
    } while (take(','));
    if (!take('}')) return refuse();
    return value;
  }

  Result<Json> read_list(int depth) {
    Json value{.kind = Json::Kind::list, .text = {}, .items = {}, .members = {}};
    take('[');
    if (take(']')) return value;
    do {
      FDL_ASSIGN_OR_RETURN(Json item, read_value(depth + 1));
      value.items.push_back(std::move(item));
    } while (take(','));
    if (!take(']')) return refuse();
    return value;
  }

  // Escaped characters beyond ASCII do not occur in host names; their escapes are kept unchanged.
  Result<std::string> read_text() {
    if (at_ == text_.size() || text_[at_] != '"') return refuse();
    std::string text;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') return ++at_, text;
      if (c == '\\' && ++at_ == text_.size()) break;
      if (c != '\\') {
        text += c;
      } else if (text_[at_] == 'n' || text_[at_] == 't') {
        text += text_[at_] == 'n' ? '\n' : '\t';
      } else if (text_[at_] == 'u') {
        text += "\\u";
      } else {
        text += text_[at_];
      }
    }
    return refuse();
  }

  Result<Json> read_word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::string_view(",]} \t\r\n").find(text_[at_]) == std::string_view::npos) ++at_;
    Json value;
    value.text = text_.substr(begin, at_ - begin);
    if (value.text == "null") return value;
    value.kind = value.text == "true" || value.text == "false" ? Json::Kind::boolean : Json::Kind::number;
    const bool is_number = value.text.find_first_not_of("+-.0123456789eE") == std::string::npos && !value.text.empty();
    if (value.kind == Json::Kind::number && !is_number) return at_ = begin, refuse();
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

const Json* Json::member(std::string_view name) const {
  for (const auto& [key, value] : members) {
    if (key == name) return &value;
  }
  return nullptr;
}

Result<Json> parse_json(std::string_view text) { return Reader(text).read_all(); }

}  // namespace fdl

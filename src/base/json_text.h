// json_text() escapes text for JSON.
#pragma once

#include <string>
#include <string_view>

namespace fdl {

// Returns the content of a JSON string, without the quotes. Its only line ends are escaped ones. Bytes that are not
// UTF-8, which JSON cannot hold, become question marks.
std::string json_text(std::string_view text);

}  // namespace fdl

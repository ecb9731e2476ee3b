// Functions that write text of any bytes where some bytes have a meaning: in JSON, on a terminal, in a line of a log.
#pragma once

#include <string>
#include <string_view>

namespace fdl {

// Returns the content of a JSON string, without the quotes. Its only line ends are escaped ones. Bytes that are not
// UTF-8, which JSON cannot hold, become question marks.
std::string json_text(std::string_view text);

// Returns the text with \xNN for each control character, which could move a terminal's cursor or begin a line, and for
// each byte that is not UTF-8.
std::string printable(std::string_view text);

// Returns printable() in single quotes: for values of variables in errors.
std::string quoted_text(std::string_view text);

}  // namespace fdl

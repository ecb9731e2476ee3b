// wrap() counts around a circle of ranks or chunks, in both directions.
#pragma once

namespace fdl {

// The place of `value` on a circle of `size` places: wrap(-1, 4) is 3.
inline int wrap(int value, int size) { return ((value % size) + size) % size; }

}  // namespace fdl

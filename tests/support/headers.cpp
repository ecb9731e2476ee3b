// Compiles the header that the tests share (tests/CMakeLists.txt): a precompiled header needs one source.

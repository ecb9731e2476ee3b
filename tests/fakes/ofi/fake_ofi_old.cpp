// A fake of a libfabric that is too old: it has the functions that are looked up, and reports version 1.5.
extern "C" {
#define FAKE __attribute__((visibility("default")))
FAKE unsigned fi_version() { return 1u << 16 | 5; }
FAKE const char* fi_strerror(int) { return "an error of the fake"; }
FAKE void* fi_dupinfo(const void*) { return nullptr; }
FAKE void fi_freeinfo(void*) {}
FAKE int fi_getinfo() { return -61; }
FAKE int fi_fabric() { return -61; }
}

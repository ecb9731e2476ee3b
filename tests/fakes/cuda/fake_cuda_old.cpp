// Stand-in for a CUDA driver of long ago: it says its version, and lacks most of what is asked for.
extern "C" __attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = 9020;
  return 0;
}

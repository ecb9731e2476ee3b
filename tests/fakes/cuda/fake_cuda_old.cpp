// A fake of a very old CUDA driver: it returns its version and lacks most other functions.
extern "C" __attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = 9020;
  return 0;
}

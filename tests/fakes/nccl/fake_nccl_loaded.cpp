// A fake of an NCCL that other code has loaded into the process: it returns its version and has no other function.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 23004;
  return 0;
}

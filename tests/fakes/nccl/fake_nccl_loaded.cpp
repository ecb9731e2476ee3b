// Stand-in for an NCCL that something else has brought into the process: it says its version, and has nothing more.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 23004;
  return 0;
}

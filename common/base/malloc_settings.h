// How the C library keeps freed memory.
#ifndef BATON_COMMON_BASE_MALLOC_SETTINGS_H_
#define BATON_COMMON_BASE_MALLOC_SETTINGS_H_

namespace baton {

// Keeps freed memory in the process for the next allocation: up to 32 MiB in each of malloc's
// arenas, instead of 128 KiB. A transfer allocates and frees buffers of up to 4 MiB, in gRPC as in
// KvSender. With glibc's defaults each goes back to the kernel and each of its pages is faulted in
// again, which costs as much CPU time as receiving the bytes. So it is with the text and the tokens
// of a long prompt in a router.
//
// Call at the start of main, before any thread. Does nothing without glibc.
void KeepFreedMemory();

}  // namespace baton

#endif  // BATON_COMMON_BASE_MALLOC_SETTINGS_H_

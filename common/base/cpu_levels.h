#pragma once

// The sets of CPU instructions that loops are built for, beside the baseline. A function with one of these
// attributes may run only where the check below says so. Its loops are inlined into it: an inline function of
// a shared header could be compiled for instructions that this CPU lacks.

// GCC would stay with 256 bits; Clang does not know the setting.
#define WEIR_AVX2 __attribute__((target("avx2")))
#ifdef __clang__
#define WEIR_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define WEIR_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif

namespace weir {

// __builtin_cpu_supports also asks whether the operating system saves the wide registers.
inline bool HasAvx2() { return __builtin_cpu_supports("avx2"); }
inline bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace weir

// Chooses the instruction set, once, when first asked.
#include <cstdlib>
#include <cstring>

#include "kernel_table.h"

namespace {

bool runs(const Kernels* table) {
  if (table == nullptr) return false;
#if defined(__x86_64__)
  if (table == avx512_kernels())
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (table == avx2_kernels()) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return true;
}

const Kernels* choose() {
  const Kernels* const tables[] = {avx512_kernels(), avx2_kernels(), neon_kernels(), portable_kernels()};
  const char* wanted = std::getenv("SAPWOOD_KERNEL_ISA");
  for (const Kernels* table : tables)
    if (runs(table) && (wanted == nullptr || std::strcmp(wanted, table->name) == 0)) return table;
  return nullptr;
}

}  // namespace

const Kernels* kernels() {
  static const Kernels* const chosen = choose();
  return chosen;
}

SW_API const char* sw_isa() { return kernels() == nullptr ? nullptr : kernels()->name; }

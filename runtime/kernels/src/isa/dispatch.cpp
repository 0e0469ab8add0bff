// Chooses the instruction set, once, when first asked. What a set needs is everything that build.py lets its compiler
// use.
#include <cstdlib>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "isa/kernel_table.h"

namespace {

#define SW_AVX2 "avx2 fma f16c popcnt"  // -mavx2 lets a compiler use popcnt as well

// Features by the names that compilers and Linux have for them, with a space between them.
const char* needs(const Kernels* table) {
  if (table == avx512_kernels()) return SW_AVX2 " avx512f avx512bw avx512dq avx512vl";
  if (table == avx2_kernels()) return SW_AVX2;
  return "";
}

std::string of_this_machine() {
  std::string features;
#if defined(__x86_64__)
  // Those of AVX count only where the system keeps their registers, which these built-ins ask as well.
#define SW_ADD_WHERE_SUPPORTED(name) \
  if (__builtin_cpu_supports(name)) features += name " ";
  SW_ADD_WHERE_SUPPORTED("avx2")
  SW_ADD_WHERE_SUPPORTED("fma")
  SW_ADD_WHERE_SUPPORTED("popcnt")
  SW_ADD_WHERE_SUPPORTED("avx512f")
  SW_ADD_WHERE_SUPPORTED("avx512bw")
  SW_ADD_WHERE_SUPPORTED("avx512dq")
  SW_ADD_WHERE_SUPPORTED("avx512vl")
#undef SW_ADD_WHERE_SUPPORTED
  unsigned a, b, c, d;  // not every compiler knows this one
  if (__builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C)) features += "f16c ";
#endif
  return features;
}

bool has_all(const std::string& features, const std::string& needed) {
  const std::string padded = " " + features + " ";
  for (size_t start = 0; start < needed.size();) {
    size_t end = needed.find(' ', start);
    if (end == std::string::npos) end = needed.size();
    if (padded.find(" " + needed.substr(start, end - start) + " ") == std::string::npos) return false;
    start = end + 1;
  }
  return true;
}

const Kernels* best(const std::string& features, const char* wanted) {
  const Kernels* const tables[] = {avx512_kernels(), avx2_kernels(), neon_kernels(), portable_kernels()};
  for (const Kernels* table : tables)
    if (table != nullptr && has_all(features, needs(table)) &&
        (wanted == nullptr || std::strcmp(wanted, table->name) == 0))
      return table;
  return nullptr;
}

}  // namespace

const Kernels* kernels() {
  static const Kernels* const chosen = best(of_this_machine(), std::getenv("SAPWOOD_KERNEL_ISA"));
  return chosen;
}

SW_API const char* sw_isa() { return kernels() == nullptr ? nullptr : kernels()->name; }

SW_API const char* sw_isa_for(const char* features) { return best(features, nullptr)->name; }

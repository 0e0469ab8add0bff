// Chooses each row's token from its logits, as runtime/sampling/params.py defines it. A choice depends on its row
// alone, so rows are dealt out to the threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "forward/workspace.h"

// The numbers that sampling/params.py declares for the kernels, under their names there; then what the row's state has.
#define SW_SAMPLING_FIELDS(FIELD)                                                                                \
  FIELD(uint64_t, seed)                                                                                          \
  FIELD(double, temperature)                                                                                     \
  FIELD(int64_t, top_k)                                                                                          \
  FIELD(double, top_p)                                                                                           \
  FIELD(double, min_p)                                                                                           \
  FIELD(double, repetition_penalty)                                                                              \
  FIELD(double, presence_penalty)                                                                                \
  FIELD(double, frequency_penalty)                                                                               \
  FIELD(const float*, counts)      /* [vocab]: how often each token was generated; null: nothing is penalized */ \
  FIELD(const uint8_t*, in_prompt) /* [vocab]: whether the prompt has the token */                               \
  FIELD(const int64_t*, bias_ids)  /* [biases], and what is added to these tokens' logits */                     \
  FIELD(const float*, bias)                                                                                      \
  FIELD(int64_t, biases)                                                                                         \
  FIELD(const int64_t*, stop_ids) /* [stops] */                                                                  \
  FIELD(int64_t, stops)

struct SwSampling {
#define FIELD(type, name) type name;
  SW_SAMPLING_FIELDS(FIELD)
#undef FIELD
};

SW_API const char* sw_sampling_fields() {
#define FIELD(type, name) #type " " #name ";"
  return SW_SAMPLING_FIELDS(FIELD);
#undef FIELD
}

namespace {

constexpr double kEndless = std::numeric_limits<double>::infinity();
constexpr double kLevel = 0x1p-8;  // weights are looked at in levels, from 1 down: the heavy ones are few
constexpr int kFineLevels = 3;
constexpr int kFineShift = 47;    // in these, 32 bins to a power of two
constexpr int kCoarseShift = 52;  // one bin to a power of two, below
constexpr uint64_t kBins = 1024;
constexpr int64_t kRowsPerThread = 4;  // fewer are not worth another thread

int64_t draw_blocks(int64_t vocab) { return (vocab + kDrawBlock - 1) / kDrawBlock; }

// What one thread works with, cut from one piece of memory.
struct RowScratch {
  RowScratch(float* base, int64_t vocab)
      : weights(reinterpret_cast<double*>(base)),
        members(weights + vocab),
        sums(members + vocab),
        peaks(sums + draw_blocks(vocab)),
        logits(reinterpret_cast<float*>(peaks + draw_blocks(vocab))) {}
  static int64_t floats(int64_t vocab) { return (5 * vocab + 4 * draw_blocks(vocab) + 15) / 16 * 16; }
  double* weights;  // [vocab]
  double* members;  // [vocab]
  double* sums;     // [draw_blocks(vocab)]
  double* peaks;    // [draw_blocks(vocab)]
  float* logits;    // [vocab]
};

uint64_t splitmix(uint64_t value) {
  uint64_t z = value + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

double uniform(uint64_t seed, uint64_t position) {
  return static_cast<double>(splitmix(splitmix(seed) ^ position) >> 11) * 0x1p-53;
}

// --- which tokens are kept -------------------------------------------------------------------------------------------

// A row's weights, between 0 and 1, with the sum and the largest of each block of them.
struct Weights {
  const double* at;
  const double* sums;
  const double* peaks;
  int64_t count;

  double total() const { return std::accumulate(sums, sums + draw_blocks(count), 0.0); }
  // use(weight), in order of id, for those in (above, most].
  template <class Use>
  void for_each(double above, double most, Use use) const {
    for (int64_t block = 0; block * kDrawBlock < count; ++block) {
      if (peaks[block] <= above) continue;
      const int64_t end = std::min(count, (block + 1) * kDrawBlock);
      double found[kDrawBlock];  // gathered without branches, which could not be foreseen
      int64_t size = 0;
      for (int64_t i = block * kDrawBlock; i < end; ++i) {
        found[size] = at[i];
        size += (at[i] > above) & (at[i] <= most);
      }
      for (int64_t i = 0; i < size; ++i) use(found[i]);
    }
  }
};

uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, 8);
  return bits;
}
double from_bits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}

// From the heaviest down, until `number` are counted or their weights sum up to `share`.
struct Ranking {
  int64_t number;
  double share;
  int64_t counted = 0;
  double sum = 0.0;

  bool ends_with(int64_t more, double weight) const { return counted + more >= number || sum + weight >= share; }
  void take(int64_t more, double weight) { counted += more, sum += weight; }

  // The last weight, if it is in (above, most], and all heavier ones were taken before; else -1, and those are taken.
  // They are sorted by the exponent and `52 - shift` bits of the fraction first; only the last one's like are by value.
  double last_in(const Weights& weights, double above, double most, int shift, double* members) {
    int64_t counts[kBins] = {};
    double sums[kBins] = {};
    const uint64_t top = bits_of(most);
    weights.for_each(above, most, [&](double weight) {
      const uint64_t bin = (top - bits_of(weight)) >> shift;
      ++counts[bin], sums[bin] += weight;
    });
    for (uint64_t bin = 0; bin < kBins; ++bin) {
      if (counts[bin] == 0) continue;
      if (ends_with(counts[bin], sums[bin])) {
        const double below_bin = from_bits(top - ((bin + 1) << shift));
        return last_of(weights, std::max(above, below_bin), from_bits(top - (bin << shift)), members);
      }
      take(counts[bin], sums[bin]);
    }
    return -1.0;
  }

  double last_of(const Weights& weights, double above, double most, double* members) {
    int64_t size = 0, i = 0;
    weights.for_each(above, most, [&](double weight) { members[size++] = weight; });
    std::sort(members, members + size, std::greater<double>());
    for (; i + 1 < size && !ends_with(1, members[i]); ++i) take(1, members[i]);
    return members[i];
  }
};

// The smallest weight that top-k (number) or top-p (share of the sum) keeps of those from `least` on; 0 for all of
// them.
double last_kept(const Weights& weights, double least, int64_t number, double share, double* members) {
  Ranking ranking{number, share};
  const double above = least > 0.0 ? std::nextafter(least, 0.0) : 0.0;
  double most = 1.0, last = -1.0;
  for (int level = 0; level < kFineLevels && last < 0.0; ++level, most *= kLevel)
    last = ranking.last_in(weights, std::max(above, most * kLevel), most, kFineShift, members);
  if (last < 0.0) last = ranking.last_in(weights, above, most, kCoarseShift, members);
  return std::max(last, 0.0);
}

// The `number`-th largest peak, of which no weight among the `number` largest can be smaller; 0 if there is none.
double peak_floor(const Weights& weights, int64_t number, double* members) {
  const int64_t blocks = draw_blocks(weights.count);
  if (number > blocks) return 0.0;
  std::copy(weights.peaks, weights.peaks + blocks, members);
  std::nth_element(members, members + number - 1, members + blocks, std::greater<double>());
  return members[number - 1];
}

// The first token, by id, at which the cumulative weight passes uniform * total.
int64_t draw(const Weights& weights, double least, double uniform) {
  const double total = weights.total();
  const double target = std::min(uniform * total, std::nextafter(total, 0.0));
  int64_t block = 0;
  double running = 0.0;
  while (running + weights.sums[block] <= target) running += weights.sums[block++];
  int64_t last = -1;  // rounding may leave the sum in order just short of what the block's sum is
  const int64_t end = std::min(weights.count, (block + 1) * kDrawBlock);
  for (int64_t i = block * kDrawBlock; i < end && running <= target; ++i) {
    if (weights.at[i] < least || weights.at[i] == 0.0) continue;
    running += weights.at[i];
    last = i;
  }
  return last;
}

int64_t sampled(const SwSampling& options, const float* logits, int64_t vocab, float largest, int64_t position,
                const RowScratch& scratch) {
  const double inverse = std::min(1.0 / options.temperature, std::numeric_limits<double>::max());
  kernels()->weigh(logits, vocab, largest, inverse, scratch.weights, scratch.sums, scratch.peaks);
  const Weights weights{scratch.weights, scratch.sums, scratch.peaks, vocab};
  double least = 0.0;
  if (options.top_k > 0 && options.top_k < vocab) {
    least = peak_floor(weights, options.top_k, scratch.members);
    least = last_kept(weights, least, options.top_k, kEndless, scratch.members);
    kernels()->sum_kept(scratch.weights, vocab, least, scratch.sums);
  }
  double kept = std::max(least, options.min_p);
  if (options.top_p < 1.0) {
    const int64_t all = std::numeric_limits<int64_t>::max();
    kept = std::max(kept, last_kept(weights, least, all, options.top_p * weights.total(), scratch.members));
  }
  if (kept > least) kernels()->sum_kept(scratch.weights, vocab, kept, scratch.sums);
  return draw(weights, kept, uniform(options.seed, static_cast<uint64_t>(position)));
}

// --- what changes the logits first -----------------------------------------------------------------------------------

void penalize(const SwSampling& options, int64_t vocab, float* logits) {
  const float repetition = static_cast<float>(options.repetition_penalty);
  const float presence = static_cast<float>(options.presence_penalty);
  const float frequency = static_cast<float>(options.frequency_penalty);
  for (int64_t i = 0; i < vocab; ++i) {
    const float count = options.counts[i];
    float x = logits[i];
    if (options.in_prompt[i] || count > 0.0f) x = x > 0.0f ? x / repetition : x * repetition;
    logits[i] = x - presence * (count > 0.0f ? 1.0f : 0.0f) - frequency * count;
  }
}

bool allows_all(const uint32_t* mask, int64_t words) {
  return std::all_of(mask, mask + words, [](uint32_t word) { return word == ~0u; });
}

struct Call {
  const float* logits;
  int64_t vocab;
  const SwSampling* const* options;
  const int64_t* positions;
  const uint8_t* holds_back;
  const uint32_t* bitmasks;
};

// The row's logits as its options and mask change them: in place where they do not, else in the scratch.
const float* adjusted(const Call& call, int64_t row, const float* logits, const RowScratch& scratch) {
  const SwSampling& options = *call.options[row];
  const int64_t words = (call.vocab + 31) / 32;
  const uint32_t* mask = call.bitmasks == nullptr ? nullptr : call.bitmasks + row * words;
  if (mask != nullptr && allows_all(mask, words)) mask = nullptr;
  const bool penalizes = options.counts != nullptr;
  if (!penalizes && options.biases == 0 && !call.holds_back[row] && mask == nullptr) return logits;
  std::memcpy(scratch.logits, logits, call.vocab * sizeof(float));
  if (penalizes) penalize(options, call.vocab, scratch.logits);
  for (int64_t i = 0; i < options.biases; ++i) scratch.logits[options.bias_ids[i]] += options.bias[i];
  if (call.holds_back[row])
    for (int64_t i = 0; i < options.stops; ++i) scratch.logits[options.stop_ids[i]] = -__builtin_inff();
  if (mask != nullptr) kernels()->forbid(mask, call.vocab, scratch.logits);
  return scratch.logits;
}

int64_t choose(const Call& call, int64_t row, const RowScratch& scratch) {
  const float* model = call.logits + row * call.vocab;
  float largest;
  if (!kernels()->largest_of(model, call.vocab, &largest)) return -1;
  const float* logits = adjusted(call, row, model, scratch);
  if (logits != model) kernels()->largest_of(logits, call.vocab, &largest);
  if (!std::isfinite(largest)) return -1;  // nothing is left to choose from
  const SwSampling& options = *call.options[row];
  if (options.temperature == 0.0) return kernels()->first_place(logits, call.vocab, largest);
  return sampled(options, logits, call.vocab, largest, call.positions[row], scratch);
}

}  // namespace

SW_API int32_t sw_choose(SwWorkspace* workspace, const float* logits, int64_t rows, int64_t vocab,
                         const SwSampling* const* options, const int64_t* positions, const uint8_t* holds_back,
                         const uint32_t* bitmasks, int64_t* chosen) {
  return guarded([&]() -> int32_t {
    SwWorkspace& ws = *workspace;
    const Call call{logits, vocab, options, positions, holds_back, bitmasks};
    const int threads = static_cast<int>(std::min<int64_t>((rows + kRowsPerThread - 1) / kRowsPerThread, ws.threads));
    float* memory = ws.sampling.reserve(threads * RowScratch::floats(vocab));
    ws.team.run(threads, [&](Worker& worker) {
      const RowScratch scratch(memory + worker.id() * RowScratch::floats(vocab), vocab);
      worker.phase(rows, [&](int64_t row) { chosen[row] = choose(call, row, scratch); });
    });
    return SW_OK;
  });
}

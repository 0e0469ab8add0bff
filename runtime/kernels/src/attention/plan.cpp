#include "attention/plan.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr int kItemsPerThread = 3;  // enough that a late thread does not matter much
constexpr int kMinGroupRows = 24;   // below, transposing the keys costs more than balance gains

int32_t ceil_div(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

}  // namespace

int32_t AttentionPlan::build(const SwModel& model, const SwStep& step, int threads) {
  if (step.qo_indptr[0] != 0 || step.kv_indptr[0] != 0 || step.qo_indptr[step.entries] != step.tokens)
    return SW_BAD_SHAPE;
  for (int32_t b = 0; b < step.entries; ++b) {
    const int32_t queries = step.qo_indptr[b + 1] - step.qo_indptr[b];
    if (queries < 1 || step.kv_indptr[b + 1] - step.kv_indptr[b] < queries) return SW_BAD_SHAPE;
  }
  if (const int32_t status = find_groups(model, step)) return status;
  plan_groups(model, threads);
  plan_entries(model, step, threads);
  return SW_OK;
}

int32_t AttentionPlan::find_groups(const SwModel& model, const SwStep& step) {
  groups.clear();
  group_tokens.clear();
  group_states = 0;
  shared_blocks.assign(step.entries, 0);
  group_of.assign(step.entries, -1);
  place_of.assign(step.entries, 0);
  for (int32_t g = 0; g < step.groups; ++g) {
    const int32_t begin = step.group_indptr[g], end = step.group_indptr[g + 1];
    if (end - begin < 2) continue;
    int32_t shared = step.group_lengths[g];
    for (int32_t i = begin; i < end; ++i) {
      const int32_t b = step.group_entries[i];
      if (b < 0 || b >= step.entries || group_of[b] >= 0) return SW_BAD_GROUP;
      // every query of the group must see all of the shared keys
      const int32_t before = step.kv_indptr[b + 1] - step.kv_indptr[b] - (step.qo_indptr[b + 1] - step.qo_indptr[b]);
      shared = std::min(shared, before);
    }
    PlannedGroup group{step.group_entries[begin], shared / kKeyBlock, static_cast<int32_t>(group_tokens.size()), 0,
                       group_states};
    if (group.blocks == 0) continue;
    for (int32_t i = begin; i < end; ++i) {
      const int32_t b = step.group_entries[i];
      if (std::memcmp(step.kv_indices + step.kv_indptr[b], step.kv_indices + step.kv_indptr[group.entry],
                      sizeof(int32_t) * group.blocks * kKeyBlock) != 0)
        return SW_BAD_GROUP;
      shared_blocks[b] = group.blocks;
      group_of[b] = static_cast<int32_t>(groups.size());
      place_of[b] = group.tokens;
      for (int32_t t = step.qo_indptr[b]; t < step.qo_indptr[b + 1]; ++t) group_tokens.push_back(t);
      group.tokens += step.qo_indptr[b + 1] - step.qo_indptr[b];
    }
    group_states += static_cast<int64_t>(group.segments()) * group.tokens * model.heads;
    groups.push_back(group);
  }
  return SW_OK;
}

// Segments are dealt out, each with all heads, whose keys lie side by side in memory, and as many tokens as there is
// room for. Only where that makes too few items, heads are dealt out too, and then tokens.
void AttentionPlan::plan_groups(const SwModel& model, int threads) {
  group_items.clear();
  const int32_t shares = model.heads / model.kv_heads;
  const int64_t enough = threads == 1 ? 1 : kItemsPerThread * static_cast<int64_t>(threads);
  int64_t segments = 0, tokens = 0;
  for (const PlannedGroup& group : groups) segments += group.segments(), tokens += group.tokens;
  const bool joint = segments >= enough;
  int64_t rows = kAttentionRows;  // of each head in an item
  if (!joint && segments * model.kv_heads < enough && tokens > 0)
    rows = std::min(rows, std::max<int64_t>(kMinGroupRows, tokens * shares * segments * model.kv_heads / enough));
  const int32_t most = std::max<int32_t>(1, static_cast<int32_t>(rows) / shares);
  for (int32_t g = 0; g < static_cast<int32_t>(groups.size()); ++g) {
    const int32_t parts = ceil_div(groups[g].tokens, most);
    const int64_t room =
        kScratchFloats / (static_cast<int64_t>(ceil_div(groups[g].tokens, parts)) * shares * model.head_dim);
    const int32_t heads = joint ? static_cast<int32_t>(std::min<int64_t>(model.kv_heads, room)) : 1;
    for (int32_t segment = 0; segment < groups[g].segments(); ++segment)
      for (int32_t head = 0; head < model.kv_heads; head += heads)
        for (int32_t p = 0; p < parts; ++p) {
          const int32_t first = static_cast<int32_t>(static_cast<int64_t>(groups[g].tokens) * p / parts);
          const int32_t last = static_cast<int32_t>(static_cast<int64_t>(groups[g].tokens) * (p + 1) / parts);
          group_items.push_back({g, segment, head, std::min(heads, model.kv_heads - head), first, last - first});
        }
  }
}

// Segments of an entry that have blocks of its own.
int32_t AttentionPlan::segments_of(const SwStep& step, int32_t entry) const {
  const int32_t blocks = ceil_div(step.kv_indptr[entry + 1] - step.kv_indptr[entry], kKeyBlock);
  return ceil_div(blocks, kSegmentBlocks) - shared_blocks[entry] / kSegmentBlocks;
}

void AttentionPlan::plan_entries(const SwModel& model, const SwStep& step, int threads) {
  own_items.clear();
  splits.clear();
  partial_states = 0;
  const int32_t shares = model.heads / model.kv_heads;
  const int32_t per_tile = std::max(1, kAttentionRows / shares);
  const int32_t per_joint_tile = kAttentionRows / model.heads;  // queries that may take all heads together
  const int64_t enough = kItemsPerThread * static_cast<int64_t>(threads);
  int64_t tiles = 0, segments = 0;
  for (int32_t b = 0; b < step.entries; ++b) {
    const int32_t queries = step.qo_indptr[b + 1] - step.qo_indptr[b];
    tiles += ceil_div(queries, per_tile) * static_cast<int64_t>(queries <= per_joint_tile ? 1 : model.kv_heads);
    segments += segments_of(step, b);
  }
  const bool joint = threads == 1 || tiles >= enough || segments >= enough;
  const bool split = threads > 1 && tiles * (joint ? 1 : model.kv_heads) < enough;
  for (int32_t b = 0; b < step.entries; ++b) {
    const int32_t queries = step.qo_indptr[b + 1] - step.qo_indptr[b];
    const int32_t heads = joint && queries <= per_joint_tile ? model.kv_heads : 1;
    const int32_t parts = split && queries <= per_tile ? segments_of(step, b) : 1;
    if (parts == 1) {
      for (int32_t head = 0; head < model.kv_heads; head += heads)
        for (int32_t first = 0; first < queries; first += per_tile)
          own_items.push_back({b, head, heads, first, std::min(per_tile, queries - first), -1, -1});
      continue;
    }
    const int32_t first_segment = shared_blocks[b] / kSegmentBlocks;
    splits.push_back({first_segment, parts, partial_states});
    partial_states += static_cast<int64_t>(model.kv_heads) * parts * queries * shares;
    for (int32_t head = 0; head < model.kv_heads; head += heads)
      for (int32_t s = 0; s < parts; ++s)
        own_items.push_back({b, head, heads, 0, queries, first_segment + s, static_cast<int32_t>(splits.size()) - 1});
  }
  unfinished.reset(splits.empty() ? nullptr : new std::atomic<int>[splits.size() * model.kv_heads]);
}

// Cuts a step's attention into items of work. It is made once for a step and serves every layer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "isa/kernel_table.h"
#include "sapwood_kernels.h"

// Tokens of a group over one segment of the blocks that all its entries share.
struct GroupItem {
  int32_t group, segment;
  int32_t kv_head, kv_heads;  // the first, and how many
  int32_t first, count;       // in the group's tokens
};

// Queries of an entry over its own blocks (those after the shared ones): all of them, or those of one segment. Few
// queries take all heads together, block by block, since the heads' keys lie side by side in memory.
struct OwnItem {
  int32_t entry;
  int32_t kv_head, kv_heads;  // the first, and how many
  int32_t first, count;       // queries of the entry
  int32_t segment;            // -1: all
  int32_t split;              // where its partial states are; -1: not split
};

struct PlannedGroup {
  int32_t entry;        // whose slots stand for all
  int32_t blocks;       // shared blocks
  int32_t first_token;  // its tokens in group_tokens: where they begin, and how many there are
  int32_t tokens;
  int64_t state;  // its first row state: [segments][kv_heads][tokens][heads of the kv head]
  int32_t segments() const { return (blocks + kSegmentBlocks - 1) / kSegmentBlocks; }
};

// An entry whose segments are computed side by side and merged by who finishes last.
struct SplitEntry {
  int32_t first_segment, segments;
  int64_t state;  // its first row state of `partials`
};

class AttentionPlan {
 public:
  // Returns an SwStatus. `threads` only decides the sizes of items, never the arithmetic.
  int32_t build(const SwModel& model, const SwStep& step, int threads);

  std::vector<GroupItem> group_items;
  std::vector<OwnItem> own_items;
  std::vector<PlannedGroup> groups;
  std::vector<int32_t> group_tokens;   // tokens of the step, group by group
  std::vector<int32_t> shared_blocks;  // [entries]
  std::vector<int32_t> group_of;       // [entries]; -1: in no group
  std::vector<int32_t> place_of;       // [entries]: its first token's place in the group's tokens
  int64_t group_states = 0;            // row states that the groups need
  std::vector<SplitEntry> splits;
  std::unique_ptr<std::atomic<int>[]> unfinished;  // [splits * kv_heads]: items left
  int64_t partial_states = 0;                      // row states that the splits need

 private:
  int32_t find_groups(const SwModel& model, const SwStep& step);
  void plan_groups(const SwModel& model, int threads);
  void plan_entries(const SwModel& model, const SwStep& step, int threads);
  int32_t segments_of(const SwStep& step, int32_t entry) const;
};

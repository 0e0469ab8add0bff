#include "attention/work.h"

#include <algorithm>
#include <cmath>

namespace {

int64_t state_stride(const SwModel& model) { return model.head_dim + 16; }
int64_t shares_of(const SwModel& model) { return model.heads / model.kv_heads; }

// States of a group's rows over one segment: those of a key-value head, from a token of the group on.
RowStates group_states(SwWorkspace& workspace, const SwModel& model, const PlannedGroup& group, int32_t segment,
                       int32_t kv_head, int32_t token) {
  const int64_t run = static_cast<int64_t>(segment) * model.kv_heads + kv_head;
  const int64_t row = group.state + (run * group.tokens + token) * shares_of(model);
  return {workspace.states.reserve(0) + row * state_stride(model), state_stride(model)};
}

RowStates split_states(SwWorkspace& workspace, const SwModel& model, const OwnItem& item, int32_t kv_head,
                       int32_t segment) {
  const SplitEntry& split = workspace.plan.splits[item.split];
  const int64_t rows = item.count * shares_of(model);
  const int64_t row = split.state + (static_cast<int64_t>(kv_head) * split.segments + segment) * rows;
  return {workspace.partials.reserve(0) + row * state_stride(model), state_stride(model)};
}

// Bytes that so many heads take of a slot.
int64_t head_bytes(const SwModel& model, int64_t kv_heads) {
  return kv_heads * model.head_dim * static_cast<int64_t>(model.kv_type == SW_F32 ? sizeof(float) : sizeof(uint16_t));
}

const char* moved(const SwModel& model, const void* pool, int32_t kv_head) {
  return static_cast<const char*>(pool) + head_bytes(model, kv_head);
}

// Of a block of keys that begins with `slots`, what shall be fetched in turn `turn` of `turns`: some of the slots, and
// of those all heads that are wanted, which lie side by side.
UpcomingKeys upcoming(const AttentionCall& call, const int32_t* slots, int64_t keys, int32_t kv_head, int32_t kv_heads,
                      int32_t turn, int32_t turns) {
  const int64_t count = std::max<int64_t>(0, std::min<int64_t>(keys, kKeyBlock));
  const int64_t first = count * turn / turns;
  return {slots + first,
          count * (turn + 1) / turns - first,
          moved(call.model, call.layer.keys, kv_head),
          moved(call.model, call.layer.values, kv_head),
          head_bytes(call.model, call.model.kv_heads),
          head_bytes(call.model, kv_heads)};
}

// A tile without rows yet, which will use the scratch's rows from `row` on.
AttentionTile make_tile(const AttentionCall& call, int32_t entry, int32_t kv_head, int64_t row,
                        ThreadScratch& scratch) {
  const SwModel& model = call.model;
  AttentionTile tile{};
  tile.type = model.kv_type;
  tile.dim = model.head_dim;
  tile.queries = scratch.queries + row * tile.dim;
  tile.visible = scratch.visible + row;
  tile.slots = call.step.kv_indices + call.step.kv_indptr[entry];
  tile.keys = moved(model, call.layer.keys, kv_head);
  tile.values = moved(model, call.layer.values, kv_head);
  tile.slot_stride = static_cast<int64_t>(model.kv_heads) * model.head_dim;
  tile.scratch = {scratch.keys, scratch.values, scratch.scores};
  return tile;
}

// The scaled queries of a token's heads become rows of the tile.
void add_rows(const AttentionCall& call, int32_t token, int32_t kv_head, int64_t visible, int64_t row,
              AttentionTile& tile, ThreadScratch& scratch) {
  const int64_t shares = shares_of(call.model), dim = call.model.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const float* from = call.q + token * call.q_stride + kv_head * shares * dim;
  for (int64_t g = 0; g < shares; ++g, ++tile.rows) {
    kernels()->scale_query(from + g * dim, scale, dim, scratch.queries + (row + tile.rows) * dim);
    scratch.visible[row + tile.rows] = visible;
  }
}

void clear_rows(const RowStates& states, int64_t rows, int64_t dim) {
  for (int64_t r = 0; r < rows; ++r) kernels()->clear_row(states.row(r), dim);
}

// Where the item after this one will begin to read.
struct Ahead {
  const OwnItem* item;
  int64_t block;
  const int32_t* slots;
  int64_t keys;
};
Ahead look_ahead(const AttentionCall& call, const AttentionPlan& plan, int64_t number) {
  if (number + 1 >= static_cast<int64_t>(plan.own_items.size())) return {nullptr, 0, nullptr, 0};
  const OwnItem& item = plan.own_items[number + 1];
  int64_t block = plan.shared_blocks[item.entry];
  if (item.segment >= 0) block = std::max<int64_t>(block, static_cast<int64_t>(item.segment) * kSegmentBlocks);
  const int32_t begin = call.step.kv_indptr[item.entry];
  return {&item, block, call.step.kv_indices + begin, call.step.kv_indptr[item.entry + 1] - begin};
}

// An item on its way: one tile for each of its heads, and the blocks that it covers.
class OwnWork {
 public:
  OwnWork(SwWorkspace& workspace, const AttentionCall& call, int64_t number, ThreadScratch& scratch)
      : ws_(workspace),
        call_(call),
        item_(workspace.plan.own_items[number]),
        scratch_(scratch),
        ahead_(look_ahead(call, workspace.plan, number)),
        rows_(item_.count * shares_of(call.model)),
        keys_(call.step.kv_indptr[item_.entry + 1] - call.step.kv_indptr[item_.entry]),
        before_(keys_ - (call.step.qo_indptr[item_.entry + 1] - call.step.qo_indptr[item_.entry])),
        shared_(workspace.plan.shared_blocks[item_.entry]) {
    first_block_ = shared_;
    last_block_ = (before_ + item_.first + item_.count + kKeyBlock - 1) / kKeyBlock;
    if (item_.segment >= 0) {
      const int64_t start = static_cast<int64_t>(item_.segment) * kSegmentBlocks;
      first_block_ = std::max(first_block_, start);
      last_block_ = std::min(last_block_, start + kSegmentBlocks);
    }
  }

  void run() {
    for (int32_t h = 0; h < item_.kv_heads; ++h) prepare(h);
    for (int64_t block = first_block_; block < last_block_; ++block)
      for (int32_t h = 0; h < item_.kv_heads; ++h) {
        const AttentionTile& tile = scratch_.tiles[h];
        if (item_.segment < 0 && block % kSegmentBlocks == 0 && block > 0)
          kernels()->merge_rows(tile.total, tile.part, rows_, tile.dim);
        kernels()->attend_block(tile, block, next_keys(h, block + 1));
      }
    for (int32_t h = 0; h < item_.kv_heads; ++h) finish(h);
  }

 private:
  RowStates of_group(int32_t segment, int32_t kv_head) {
    const AttentionPlan& plan = ws_.plan;
    return group_states(ws_, call_.model, plan.groups[plan.group_of[item_.entry]], segment, kv_head,
                        plan.place_of[item_.entry] + item_.first);
  }
  // What the group has computed of the entry's rows, in order, but for a segment that the entry goes on with.
  void merge_group(const AttentionTile& tile, int32_t kv_head) {
    for (int32_t s = 0; s < shared_ / kSegmentBlocks; ++s)
      kernels()->merge_rows(tile.total, of_group(s, kv_head), rows_, tile.dim);
  }

  void prepare(int32_t h) {
    const int32_t kv_head = item_.kv_head + h;
    const int64_t row = h * rows_, stride = state_stride(call_.model);
    AttentionTile& tile = scratch_.tiles[h];
    tile = make_tile(call_, item_.entry, kv_head, row, scratch_);
    for (int32_t i = item_.first; i < item_.first + item_.count; ++i)
      add_rows(call_, call_.step.qo_indptr[item_.entry] + i, kv_head, before_ + i + 1, row, tile, scratch_);
    tile.total = {scratch_.states[1] + row * stride, stride};
    clear_rows(tile.total, rows_, tile.dim);
    if (item_.segment < 0) merge_group(tile, kv_head);
    if (goes_on()) {
      tile.part = of_group(last_of_group(), kv_head);
      return;
    }
    tile.part = item_.segment < 0 ? RowStates{scratch_.states[0] + row * stride, stride}
                                  : split_states(ws_, call_.model, item_, kv_head, segment());
    clear_rows(tile.part, rows_, tile.dim);
  }

  int32_t last_of_group() const { return static_cast<int32_t>(shared_ / kSegmentBlocks); }

  // The segment's number among those of the entry that are split.
  int32_t segment() const { return item_.segment - ws_.plan.splits[item_.split].first_segment; }

  // Whether the item takes up the states where the group left them, in the middle of a segment.
  bool goes_on() const {
    if (shared_ % kSegmentBlocks == 0) return false;
    return item_.segment < 0 || segment() == 0;
  }

  UpcomingKeys next_keys(int32_t h, int64_t block) const {
    const int32_t heads = item_.kv_heads;
    if (block < last_block_) {
      const int64_t begin = block * kKeyBlock;
      return upcoming(call_, scratch_.tiles[h].slots + begin, keys_ - begin, item_.kv_head, heads, h, heads);
    }
    if (ahead_.item == nullptr) return {};
    const int64_t begin = ahead_.block * kKeyBlock;
    return upcoming(call_, ahead_.slots + begin, ahead_.keys - begin, ahead_.item->kv_head, ahead_.item->kv_heads, h,
                    heads);
  }

  void finish(int32_t h) {
    const AttentionTile& tile = scratch_.tiles[h];
    const int32_t kv_head = item_.kv_head + h;
    if (item_.segment < 0) {
      kernels()->merge_rows(tile.total, tile.part, rows_, tile.dim);
      write(tile.total, kv_head);
      return;
    }
    std::atomic<int>& left = ws_.plan.unfinished[static_cast<int64_t>(item_.split) * call_.model.kv_heads + kv_head];
    if (left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    // The last one merges all, in order; the first segment's states may be those that the group left.
    merge_group(tile, kv_head);
    const bool went_on = shared_ % kSegmentBlocks != 0;
    if (went_on) kernels()->merge_rows(tile.total, of_group(last_of_group(), kv_head), rows_, tile.dim);
    for (int32_t s = went_on; s < ws_.plan.splits[item_.split].segments; ++s)
      kernels()->merge_rows(tile.total, split_states(ws_, call_.model, item_, kv_head, s), rows_, tile.dim);
    write(tile.total, kv_head);
  }

  void write(const RowStates& states, int32_t kv_head) {
    const int64_t shares = shares_of(call_.model), dim = call_.model.head_dim;
    for (int64_t i = 0; i < item_.count; ++i) {
      float* out = call_.out + (call_.step.qo_indptr[item_.entry] + item_.first + i) * call_.out_stride;
      for (int64_t g = 0; g < shares; ++g)
        kernels()->finish_row(states.row(i * shares + g), dim, out + (kv_head * shares + g) * dim);
    }
  }

  SwWorkspace& ws_;
  const AttentionCall& call_;
  const OwnItem& item_;
  ThreadScratch& scratch_;
  const Ahead ahead_;
  const int64_t rows_, keys_, before_, shared_;
  int64_t first_block_, last_block_;
};

}  // namespace

void reserve_states(SwWorkspace& workspace, const SwModel& model) {
  workspace.states.reserve(workspace.plan.group_states * state_stride(model));
  workspace.partials.reserve(workspace.plan.partial_states * state_stride(model));
}

void reset_splits(AttentionPlan& plan, const SwModel& model) {
  for (size_t i = 0; i < plan.splits.size(); ++i)
    for (int32_t head = 0; head < model.kv_heads; ++head)
      plan.unfinished[i * model.kv_heads + head].store(plan.splits[i].segments, std::memory_order_relaxed);
}

void run_group_item(SwWorkspace& workspace, const AttentionCall& call, const GroupItem& item, ThreadScratch& scratch) {
  const AttentionPlan& plan = workspace.plan;
  const PlannedGroup& group = plan.groups[item.group];
  const int64_t keys = static_cast<int64_t>(group.blocks) * kKeyBlock, rows = item.count * shares_of(call.model);
  for (int32_t h = 0; h < item.kv_heads; ++h) {
    AttentionTile& tile = scratch.tiles[h];
    tile = make_tile(call, group.entry, item.kv_head + h, h * rows, scratch);
    for (int32_t i = item.first; i < item.first + item.count; ++i)
      add_rows(call, plan.group_tokens[group.first_token + i], item.kv_head + h, keys, h * rows, tile, scratch);
    tile.part = group_states(workspace, call.model, group, item.segment, item.kv_head + h, item.first);
    clear_rows(tile.part, rows, tile.dim);
  }
  const int64_t begin = static_cast<int64_t>(item.segment) * kSegmentBlocks;
  for (int64_t block = begin; block < std::min<int64_t>(begin + kSegmentBlocks, group.blocks); ++block)
    for (int32_t h = 0; h < item.kv_heads; ++h) {
      const AttentionTile& tile = scratch.tiles[h];
      const int64_t next = (block + 1) * kKeyBlock;
      kernels()->attend_block(
          tile, block, upcoming(call, tile.slots + next, keys - next, item.kv_head, item.kv_heads, h, item.kv_heads));
    }
}

void run_own_item(SwWorkspace& workspace, const AttentionCall& call, int64_t number, ThreadScratch& scratch) {
  OwnWork(workspace, call, number, scratch).run();
}

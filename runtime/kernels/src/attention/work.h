// Carries out the items of an attention plan in one layer.
#pragma once

#include "forward/workspace.h"

// The queries and results of a layer: rows of q have q_stride floats from a token to the next, those of out its own.
struct AttentionCall {
  const SwModel& model;
  const SwStep& step;
  const SwLayer& layer;
  const float* q;
  int64_t q_stride;
  float* out;
  int64_t out_stride;
};

// Memory for the plan's states; to be called before the threads start.
void reserve_states(SwWorkspace& workspace, const SwModel& model);

// Counts of unfinished items, anew for each layer; by one thread, between two phases.
void reset_splits(AttentionPlan& plan, const SwModel& model);

void run_group_item(SwWorkspace& workspace, const AttentionCall& call, const GroupItem& item, ThreadScratch& scratch);
void run_own_item(SwWorkspace& workspace, const AttentionCall& call, int64_t number, ThreadScratch& scratch);

// The layers of a step, run by all threads side by side: phase by phase, as Worker::phase deals out the items.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/work.h"

namespace {

constexpr int kItemsPerThread = 6;
constexpr int64_t kMinRowsOfItem = 48;  // below, making panels of weights again costs more than balance gains

int64_t column_blocks(const SwMatrix& w) { return (w.n + 31) / 32; }

// Blocks of columns by runs of rows.
struct ProductItems {
  ProductItems(int64_t blocks, int64_t rows, int threads) : blocks(blocks), rows(rows) {
    int64_t wanted = (kItemsPerThread * threads + blocks - 1) / blocks;
    wanted = std::min(wanted, std::max<int64_t>(1, rows / kMinRowsOfItem));
    wanted = std::max(wanted, (rows + kProductRows - 1) / kProductRows);
    parts = threads == 1 ? (rows + kProductRows - 1) / kProductRows : wanted;
  }
  int64_t count() const { return blocks * parts; }
  int64_t block(int64_t item) const { return item / parts; }
  int64_t first(int64_t item) const { return rows * (item % parts) / parts; }
  int64_t size(int64_t item) const { return rows * (item % parts + 1) / parts - first(item); }
  int64_t blocks, rows, parts;
};

// y = x W^T, then what `Put` makes of it: put(c, first row, rows, first column, columns).
template <class Put>
void product_item(const SwMatrix& w, int64_t block, const float* x, int64_t ldx, int64_t first, int64_t rows,
                  ThreadScratch& scratch, Put put) {
  kernels()->linear_block(w, block, x + first * ldx, ldx, rows, scratch.product[0], scratch.panel);
  put(scratch.product[0], first, rows, block * 32, std::min<int64_t>(32, w.n - block * 32));
}

// What becomes of products: written to y (plus a bias), or added to it.
auto putting(float* y, int64_t ldy, const float* bias = nullptr) {
  return [=](const float* c, int64_t first, int64_t rows, int64_t column, int64_t columns) {
    kernels()->put_block(c, rows, columns, bias == nullptr ? nullptr : bias + column, y + first * ldy + column, ldy);
  };
}
auto adding(float* y, int64_t ldy) {
  return [=](const float* c, int64_t first, int64_t rows, int64_t column, int64_t columns) {
    kernels()->add_block(c, rows, columns, y + first * ldy + column, ldy);
  };
}

class Forward {
 public:
  Forward(SwWorkspace& workspace, const SwModel& model, const SwStep& step)
      : ws_(workspace),
        model_(model),
        step_(step),
        q_width_(static_cast<int64_t>(model.heads) * model.head_dim),
        kv_width_(static_cast<int64_t>(model.kv_heads) * model.head_dim),
        half_(model.head_dim / 2) {
    const int64_t tokens = step.tokens;
    x_ = ws_.x.reserve(tokens * model.width);
    normed_ = ws_.normed.reserve(tokens * model.width);
    qkv_ = ws_.qkv.reserve(tokens * (q_width_ + 2 * kv_width_));
    attended_ = ws_.attended.reserve(tokens * q_width_);
    inner_ = ws_.inner.reserve(tokens * model.inner);
    rotation_ = ws_.rotation.reserve(tokens * 2 * half_);
    reserve_states(workspace, model);
  }

  void run() {
    ws_.team.run(ws_.threads, [this](Worker& worker) { work(worker); });
  }

 private:
  void work(Worker& worker) {
    ThreadScratch& scratch = ws_.scratch[worker.id()];
    worker.phase(step_.tokens, [&](int64_t t) { begin_token(t, scratch); });
    for (int32_t i = 0; i < model_.layers; ++i) {
      const bool last = i + 1 == model_.layers;
      const int64_t rows = last ? step_.outputs : step_.tokens;
      attention_half(worker, model_.layer[i], last, scratch);
      if (rows == 0) return;
      mlp_half(worker, model_.layer[i], rows, scratch);
    }
    worker.phase(step_.outputs, [&](int64_t r) {
      kernels()->rms_norm(x_ + r * model_.width, model_.norm, model_.width, model_.rms_eps,
                          step_.hidden + r * model_.width);
    });
  }

  void attention_half(Worker& worker, const SwLayer& layer, bool last, ThreadScratch& scratch) {
    const int64_t tokens = step_.tokens, ldq = q_width_ + 2 * kv_width_;
    norm(worker, layer.attn_norm, tokens);
    const int64_t q_blocks = column_blocks(layer.q), k_blocks = column_blocks(layer.k);
    const ProductItems items(q_blocks + k_blocks + column_blocks(layer.v), tokens, worker.size());
    worker.phase(items.count(), [&](int64_t item) {
      int64_t block = items.block(item), column = 0;
      const SwMatrix* w = &layer.q;
      if (block >= q_blocks + k_blocks) {
        block -= q_blocks + k_blocks, column = q_width_ + kv_width_, w = &layer.v;
      } else if (block >= q_blocks) {
        block -= q_blocks, column = q_width_, w = &layer.k;
      }
      const float* bias = layer.qkv_bias == nullptr ? nullptr : layer.qkv_bias + column;
      product_item(*w, block, normed_, model_.width, items.first(item), items.size(item), scratch,
                   putting(qkv_ + column, ldq, bias));
    });
    worker.phase(tokens, [&](int64_t t) {
      if (t == 0) reset_splits(ws_.plan, model_);  // nobody attends now
      rotate_and_store(t, layer);
    });
    if (last && step_.outputs == 0) return;

    const AttentionPlan& plan = ws_.plan;
    const AttentionCall call{model_, step_, layer, qkv_, ldq, attended_, q_width_};
    worker.phase(plan.group_items.size(),
                 [&](int64_t item) { run_group_item(ws_, call, plan.group_items[item], scratch); });
    worker.phase(plan.own_items.size(), [&](int64_t item) { run_own_item(ws_, call, item, scratch); });
    int64_t rows = tokens;
    if (last && step_.outputs < tokens) {
      worker.phase(1, [&](int64_t) { keep_outputs(); });
      rows = step_.outputs;
    }
    product(worker, layer.out, attended_, q_width_, rows, scratch, adding(x_, model_.width));
  }

  void mlp_half(Worker& worker, const SwLayer& layer, int64_t rows, ThreadScratch& scratch) {
    norm(worker, layer.mlp_norm, rows);
    const ProductItems items(column_blocks(layer.gate), rows, worker.size());
    worker.phase(items.count(), [&](int64_t item) {
      const int64_t block = items.block(item), first = items.first(item), size = items.size(item);
      const float* x = normed_ + first * model_.width;
      kernels()->linear_block(layer.gate, block, x, model_.width, size, scratch.product[0], scratch.panel);
      kernels()->linear_block(layer.up, block, x, model_.width, size, scratch.product[1], scratch.panel);
      kernels()->swiglu_block(scratch.product[0], scratch.product[1], size,
                              std::min<int64_t>(32, model_.inner - block * 32),
                              inner_ + first * model_.inner + block * 32, model_.inner);
    });
    product(worker, layer.down, inner_, model_.inner, rows, scratch, adding(x_, model_.width));
  }

  // --- single phases -------------------------------------------------------------------------------------------

  template <class Put>
  void product(Worker& worker, const SwMatrix& w, const float* x, int64_t ldx, int64_t rows, ThreadScratch& scratch,
               Put put) {
    const ProductItems items(column_blocks(w), rows, worker.size());
    worker.phase(items.count(), [&](int64_t item) {
      product_item(w, items.block(item), x, ldx, items.first(item), items.size(item), scratch, put);
    });
  }

  void norm(Worker& worker, const float* weight, int64_t rows) {
    worker.phase(rows, [&](int64_t r) {
      kernels()->rms_norm(x_ + r * model_.width, weight, model_.width, model_.rms_eps, normed_ + r * model_.width);
    });
  }

  void begin_token(int64_t t, ThreadScratch& scratch) {
    kernels()->matrix_row(model_.embed, step_.token_ids[t], x_ + t * model_.width, scratch.panel);
    float* cosines = rotation_ + t * 2 * half_;
    for (int64_t i = 0; i < half_; ++i) {
      const float angle = static_cast<float>(step_.positions[t]) * model_.rope_frequencies[i];
      cosines[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      cosines[half_ + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }

  void rotate_and_store(int64_t t, const SwLayer& layer) {
    const int64_t dim = model_.head_dim;
    float* q = qkv_ + t * (q_width_ + 2 * kv_width_);
    const float* cosines = rotation_ + t * 2 * half_;
    for (int64_t h = 0; h < model_.heads + model_.kv_heads; ++h)
      kernels()->rotate(q + h * dim, cosines, cosines + half_, half_);
    const int64_t start = step_.slots[t] * kv_width_;
    kernels()->store_numbers(model_.kv_type, q + q_width_, kv_width_, layer.keys, start);
    kernels()->store_numbers(model_.kv_type, q + q_width_ + kv_width_, kv_width_, layer.values, start);
  }

  // Only the wanted rows go through the rest of the last layer: they move to the front.
  void keep_outputs() {
    for (int64_t i = 0; i < step_.outputs; ++i) {
      const int64_t row = step_.output_rows[i];  // ascending, so it is never before i
      if (row == i) continue;
      std::memcpy(x_ + i * model_.width, x_ + row * model_.width, model_.width * sizeof(float));
      std::memcpy(attended_ + i * q_width_, attended_ + row * q_width_, q_width_ * sizeof(float));
    }
  }

  SwWorkspace& ws_;
  const SwModel& model_;
  const SwStep& step_;
  const int64_t q_width_, kv_width_, half_;
  float *x_, *normed_, *qkv_, *attended_, *inner_, *rotation_;
};

int32_t check_step(const SwModel& model, const SwStep& step) {
  for (int32_t t = 0; t < step.tokens; ++t) {
    if (step.token_ids[t] < 0 || step.token_ids[t] >= model.vocab) return SW_BAD_TOKEN;
    if (step.slots[t] < 0 || step.slots[t] >= model.slots) return SW_BAD_SLOT;
  }
  for (int32_t i = 0; i < step.outputs; ++i) {
    const int32_t least = i == 0 ? 0 : step.output_rows[i - 1] + 1;
    if (step.output_rows[i] < least || step.output_rows[i] >= step.tokens) return SW_BAD_SHAPE;
  }
  return SW_OK;
}

int32_t check_slots(const SwModel& model, const SwStep& step) {
  uint32_t largest = 0;  // a negative slot is a large unsigned one
  for (int32_t i = 0; i < step.kv_indptr[step.entries]; ++i)
    largest = std::max(largest, static_cast<uint32_t>(step.kv_indices[i]));
  return largest < model.slots ? SW_OK : SW_BAD_SLOT;
}

}  // namespace

SW_API int32_t sw_forward(SwWorkspace* workspace, const SwModel* model, const SwStep* step) {
  return guarded([&]() -> int32_t {
    if (const int32_t status = check_step(*model, *step)) return status;
    if (const int32_t status = workspace->plan.build(*model, *step, workspace->threads)) return status;
    if (const int32_t status = check_slots(*model, *step)) return status;
    Forward(*workspace, *model, *step).run();
    return SW_OK;
  });
}

SW_API int32_t sw_attention(SwWorkspace* workspace, const SwModel* model, int32_t layer, const SwStep* step,
                            const float* q, float* out) {
  return guarded([&]() -> int32_t {
    SwWorkspace& ws = *workspace;
    if (const int32_t status = ws.plan.build(*model, *step, ws.threads)) return status;
    if (const int32_t status = check_slots(*model, *step)) return status;
    reserve_states(ws, *model);
    reset_splits(ws.plan, *model);
    const int64_t stride = static_cast<int64_t>(model->heads) * model->head_dim;
    const AttentionCall call{*model, *step, model->layer[layer], q, stride, out, stride};
    ws.team.run(ws.threads, [&](Worker& worker) {
      ThreadScratch& scratch = ws.scratch[worker.id()];
      worker.phase(ws.plan.group_items.size(),
                   [&](int64_t item) { run_group_item(ws, call, ws.plan.group_items[item], scratch); });
      worker.phase(ws.plan.own_items.size(), [&](int64_t item) { run_own_item(ws, call, item, scratch); });
    });
    return SW_OK;
  });
}

SW_API int32_t sw_linear(SwWorkspace* workspace, const SwMatrix* matrix, const float* x, int64_t rows,
                         const float* bias, float* y) {
  SwWorkspace& ws = *workspace;
  const SwMatrix& w = *matrix;
  ws.team.run(ws.threads, [&](Worker& worker) {
    ThreadScratch& scratch = ws.scratch[worker.id()];
    const ProductItems items(column_blocks(w), rows, worker.size());
    worker.phase(items.count(), [&](int64_t item) {
      product_item(w, items.block(item), x, w.k, items.first(item), items.size(item), scratch, putting(y, w.n, bias));
    });
  });
  return SW_OK;
}

SW_API int32_t sw_logits(SwWorkspace* workspace, const SwModel* model, const float* hidden, int64_t rows,
                         float* logits) {
  return sw_linear(workspace, &model->head, hidden, rows, nullptr, logits);
}

SW_API SwWorkspace* sw_workspace_new(int32_t threads) {
  try {
    return kernels() == nullptr ? nullptr : new SwWorkspace(std::max(1, std::min<int>(threads, kMaxThreads)));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

SW_API void sw_workspace_free(SwWorkspace* workspace) { delete workspace; }

ThreadRuntime& thread_runtime() {
  static ThreadRuntime runtime;
  return runtime;
}

SW_API void sw_set_runtime(void* gomp_parallel, void* omp_get_num_threads) {
  ThreadRuntime& runtime = thread_runtime();
  runtime.parallel = reinterpret_cast<decltype(runtime.parallel)>(gomp_parallel);
  runtime.count = reinterpret_cast<decltype(runtime.count)>(omp_get_num_threads);
}

// The C interface of the kernel library: plain structs and functions, which Python fills and calls through ctypes.
// Nothing here owns memory except SwWorkspace; every pointer must stay valid for the length of the call.
#pragma once

#include <cstdint>

#define SW_API extern "C" __attribute__((visibility("default")))

// How a matrix is stored. The numbers are part of the interface (bindings.py has the same).
enum SwType : int32_t {
  SW_F32 = 0,
  SW_F16 = 1,
  SW_BF16 = 2,
  SW_Q4_0 = 3,
  SW_Q4_1 = 4,
  SW_Q5_0 = 5,
  SW_Q5_1 = 6,
  SW_Q8_0 = 7,
  SW_Q4_K = 8,
  SW_Q5_K = 9,
  SW_Q6_K = 10,
};

enum SwStatus : int32_t {
  SW_OK = 0,
  SW_BAD_TOKEN = 1,  // a token id outside the vocabulary
  SW_BAD_SLOT = 2,   // a slot outside the pool
  SW_BAD_SHAPE = 3,  // index pointers that do not fit together
  SW_BAD_GROUP = 4,  // entries of a group whose first slots are not the same run
  SW_NO_MEMORY = 5,
};

// A packed matrix: n output features (columns of the product) by k input features.
struct SwMatrix {
  int32_t type;
  int32_t reserved;
  int64_t n;
  int64_t k;
  const uint8_t* data;  // sw_packed_bytes(type, n, k) bytes, aligned to 64
};

struct SwLayer {
  const float* attn_norm;  // [width]
  SwMatrix q, k, v;        // [heads or kv_heads * head_dim, width]; q and k rotate pairs (i, i + head_dim / 2)
  const float* qkv_bias;   // [(heads + 2 * kv_heads) * head_dim] or null
  SwMatrix out;            // [width, heads * head_dim]
  const float* mlp_norm;   // [width]
  SwMatrix gate, up;       // [inner, width]
  SwMatrix down;           // [width, inner]
  void* keys;              // [slots, kv_heads, head_dim] of kv_type
  void* values;
};

struct SwModel {
  int32_t layers, heads, kv_heads, head_dim, width, inner, vocab;
  int32_t kv_type;  // SW_F32, SW_F16 or SW_BF16
  int64_t slots;
  float rms_eps;
  int32_t reserved;
  const float* rope_frequencies;  // [head_dim / 2], radians per position
  const float* norm;              // [width]
  SwMatrix embed;                 // [vocab, width]
  SwMatrix head;                  // [vocab, width]
  const SwLayer* layer;           // [layers]
};

// One step of `entries` entries with `tokens` tokens in all; the ragged arrays are those of attention/base.py.
struct SwStep {
  int32_t tokens, entries;
  const int32_t* token_ids;      // [tokens]
  const int32_t* positions;      // [tokens]
  const int32_t* slots;          // [tokens], where their K and V go
  const int32_t* qo_indptr;      // [entries + 1]
  const int32_t* kv_indptr;      // [entries + 1]
  const int32_t* kv_indices;     // [kv_indptr[entries]]
  int32_t groups;                // groups of entries that share their first slots; an entry is in one group at most
  int32_t outputs;               // rows wanted
  const int32_t* group_indptr;   // [groups + 1]
  const int32_t* group_entries;  // [group_indptr[groups]]
  const int32_t* group_lengths;  // [groups]: how many first slots the entries of the group share
  const int32_t* output_rows;    // [outputs], ascending, of the step's tokens
  float* hidden;                 // [outputs, width]: the normed states of these rows
};

struct SwSampling;  // what one row's choice depends on beside its logits and position (sampling/choose.cpp)
struct SwWorkspace;

// The instruction set in use: "avx512", "avx2", "neon" or "portable". SAPWOOD_KERNEL_ISA names another to use instead;
// null if that is unknown or not available here.
SW_API const char* sw_isa();

// The best instruction set here for a machine with such features, "avx2 fma ...", as Linux names them.
SW_API const char* sw_isa_for(const char* features);

// Threads are the caller's OpenMP runtime's: its GOMP_parallel and omp_get_num_threads. Without them one thread works.
SW_API void sw_set_runtime(void* gomp_parallel, void* omp_get_num_threads);

SW_API SwWorkspace* sw_workspace_new(int32_t threads);
SW_API void sw_workspace_free(SwWorkspace* workspace);

// Packing. rows: n pointers to the stored rows (GGUF blocks, or plain numbers), in the order they are to have.
SW_API int64_t sw_packed_bytes(int32_t type, int64_t n, int64_t k);  // -1 for a k that the type cannot have
SW_API int64_t sw_row_bytes(int32_t type, int64_t k);
SW_API void sw_pack(SwWorkspace* workspace, int32_t type, int64_t n, int64_t k, const uint8_t* const* rows,
                    uint8_t* out);

// y[rows, n] = x[rows, k] W^T + bias (or null), all float32; every element is one chain of fused multiply-adds over k.
SW_API int32_t sw_linear(SwWorkspace* workspace, const SwMatrix* matrix, const float* x, int64_t rows,
                         const float* bias, float* y);

// Attention alone, over one layer's pool: q [tokens, heads, head_dim], rotated -> out of the same shape.
SW_API int32_t sw_attention(SwWorkspace* workspace, const SwModel* model, int32_t layer, const SwStep* step,
                            const float* q, float* out);

// All layers of a step: stores the tokens' K and V, and fills step->hidden.
SW_API int32_t sw_forward(SwWorkspace* workspace, const SwModel* model, const SwStep* step);

// logits [rows, vocab] of normed hidden states [rows, width].
SW_API int32_t sw_logits(SwWorkspace* workspace, const SwModel* model, const float* hidden, int64_t rows,
                         float* logits);

// A token for each row of logits [rows, vocab], or -1 for a row whose logits are not finite or that has nothing left to
// choose from. holds_back [rows]: whether the stop ids are excluded. bitmasks: null, or [rows, (vocab + 31) / 32] words
// whose bit t % 32 says whether token t is allowed. The ids in `options` must be within the vocabulary.
// sw_sampling_fields: the fields of SwSampling in their order, "TYPE NAME;" each.
SW_API const char* sw_sampling_fields();
SW_API int32_t sw_choose(SwWorkspace* workspace, const float* logits, int64_t rows, int64_t vocab,
                         const SwSampling* const* options, const int64_t* positions, const uint8_t* holds_back,
                         const uint32_t* bitmasks, int64_t* chosen);

// Draws tokens: the choice of model::Sample for equal logits, filters, penalties and errors
// included, without a sort.
//
// All filters keep a prefix of one order: by logit, highest first, then by id. Weights are whole
// numbers computed by the CPU sampler's own double arithmetic (exp_log.h), so their sums are exact
// in any order and no count of blocks or threads changes a token. Philox gives the random number.
//
// Several blocks share a request's row, and the last of them to finish a launch combines their
// results:
//   inspect  finds the highest token, which is a greedy request's;
//   weigh    sums the weights in bins of equally wide ranges of logits (logit_bins.cuh), which puts
//            the places of top_p and of the draw in one or a few of the bins; with top_k it counts
//            instead;
//   draw     lists the tokens of those bins, a few hundred, sorts them (bitonically, in shared
//            memory), cuts and draws.
// A large top_k weighs and draws twice: the first draw finds its last token. Where more tokens than
// can be sorted are in the bins (many equal logits, or few far from all others), the last block
// draws from the row alone, by radix selection (Alabi, Blelloch et al., "Fast k-selection
// algorithms for graphics processing units", ACM JEA 17, 2012) on the logit's bits as an ordered
// key, 11 bits a digit, then on the id among equal logits. Requests of all kinds share the
// launches, whose number the host knows beforehand.
//
// Bytes a request: 4 vocab a launch, of which greedy has one, others three, those with a large
// top_k five; all but the first find the row in the L2 cache, if that holds the batch's rows. A
// request that changes logits has those alone in a workspace, and reads vocab / 4 bytes more a
// launch. The double arithmetic, slow on small GPUs, is done once for each token whose weight is
// not 0, and again only for those that are listed.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_SAMPLING_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_SAMPLING_H_

#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

struct TokenBias {
  int32_t id;
  float bias;
};

// A SampleRow on the device. Lists are ranges of the launch's arrays.
struct SampleRequest {
  int logit_row;
  int workspace_row;  // of this request alone; -1: it does not change the logits
  float temperature, top_p, min_p;
  int top_k;
  float repetition_penalty, frequency_penalty, presence_penalty;
  uint32_t choice;
  uint64_t seed, position;
  int first_token, token_count, prompt_tokens;  // of ids; needed with penalties alone
  int drawn_row;                                // unless -1, its input token follows them
  int first_suppressed, suppressed_count;       // of ids
  int first_bias, bias_count;                   // of biases; each id once
};

// Fields and values of SampleOutcome (backend.h).
inline constexpr int kSampledToken = 0, kSampledNonFinite = 1, kSampledNoTokenLeft = 2;
struct SampleResult {
  int kind;
  int32_t token_id;
  float bad_logit;
};

// Shared by the blocks of a request. All 0 before and after a launch, except `places`.
inline constexpr int kMaxSamplesAtOnce = 256;  // more take turns
inline constexpr int kSampleHistogramBins = 2048;
inline constexpr int kMaxSortedTokens = 2048;
struct alignas(16) SampleScratch {
  // What the next launch does: nothing; top_k's part of it; all that comes behind top_k.
  static constexpr int kNothing = 0, kTopK = 1, kDraw = 2;
  // Places are those of token_order.cuh.
  struct alignas(16) State {
    // Of the blocks so far, each the highest.
    uint64_t highest, lowest, is_finite, first_bad;
    uint32_t arrived, listed;
    // From one launch to the next.
    int step;
    float bins_scale;  // of LogitBins
    uint64_t total;    // of all weights; 0: only counts are known
    uint64_t before;   // the sum before what is listed
    uint64_t gap;      // of the weights between high_end and low_bin
    uint64_t last;     // that top_k keeps; 0: not known
    // The bins of what is listed: high_begin to high_end, from the highest down, and low_bin.
    int high_begin, high_end, low_bin;
    int unused;
  };
  State state;
  uint64_t histogram[kSampleHistogramBins];
  uint64_t places[kMaxSortedTokens];
};

// Pointers to floats are multiples of 16 bytes, strides (in elements) of 8.
struct SampleLaunch {
  const float* logits;  // [rows, vocab]; elements between vocab and the stride are ignored
  int64_t logits_stride;
  int vocab;  // 1 to 2^22
  const SampleRequest* requests;
  const int32_t* ids;  // those outside of [0, vocab) are ignored
  const TokenBias* biases;
  const int32_t* input_tokens;  // of the batch's rows; null if no request has a drawn_row
  float* adjusted;              // [workspace rows, vocab]: quads of logits, where one is changed
  uint8_t* adjusted_quads;      // [workspace rows, vocab / 4]: 0 before and after
  uint32_t* seen;               // [workspace rows, vocab]: 0 before and after
  int64_t workspace_stride;
  SampleResult* results;   // one a request
  SampleScratch* scratch;  // one a request, kMaxSamplesAtOnce at most
  int most_sorted;         // set by LaunchSample
};

// The distribution of the work; results do not depend on it.
struct SampleShape {
  int blocks = 1;                      // a request
  int threads = 512;                   // a block: a power of two from 32 to 512
  int launches = 5;                    // the most that SampleLaunches says of any of the requests
  int most_sorted = kMaxSortedTokens;  // tokens
};
// For a device of so many multiprocessors.
SampleShape SampleShapeFor(int requests, int vocab, int multiprocessors);
// That a request takes.
int SampleLaunches(float temperature, int top_k, int vocab, int most_sorted = kMaxSortedTokens);

void LaunchSample(const SampleLaunch& launch, int requests, const SampleShape& shape,
                  Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_SAMPLING_H_

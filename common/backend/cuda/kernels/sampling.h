// Draws tokens: the choice of model::Sample for equal logits, filters, penalties and errors
// included, without a sort.
//
// All filters keep a prefix of one order: by logit, highest first, then by id. Weights are whole
// numbers computed by the CPU sampler's own double arithmetic (exp_log.h), so their sums are exact
// in any order and no count of threads changes a token. A prefix is found by radix selection
// (Alabi, Blelloch et al., "Fast k-selection algorithms for graphics processing units", ACM JEA
// 17, 2012) on the logit's bits as an ordered key, 11 bits a digit, then on the id among equal
// logits: histograms of counts find top_k, histograms of weights find top_p and the draw
// (as the bisecting samplers of FlashInfer do in floating point). Philox gives the random number.
//
// Many requests: one thread block each. Few: several blocks share a request's row, and the last of
// them to finish a launch combines their results. A greedy request needs one launch: the highest
// token of each part. Otherwise the histogram of first digits (of counts, for top_k, in that
// launch; of weights in a second one) gives the bins that the token is in; one more launch lists
// those bins' tokens, and the last block draws from the list: sorted (bitonically, in shared
// memory) if it is short, by radix selection if it is longer, from the row itself if the list has
// no room for it. Requests of all kinds share the launches, whose number the host knows beforehand.
// Workspaces hold the adjusted logits of requests that change them.
//
// Bytes a request: 4 vocab for the check; greedy reads no more. With one block, top_k: up to 4
// passes of 4 vocab more; the first histogram of weights 1, top_p up to 3, min_p after it 1, the
// draw up to 3. With several: a histogram 1, the list 2. A row is read again from the L2 cache. The
// double arithmetic, slow on small GPUs, is done once for each token that top_k leaves and whose
// weight is not 0, and again only for the tokens of a digit's bin.
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
inline constexpr int kMaxSplitSamples = 64;  // requests whose rows are shared
inline constexpr int kSampleHistogramBins = 2048;
inline constexpr int kMaxListedTokens = 16384;
inline constexpr int kMaxSortedTokens = 2048;
struct alignas(16) SampleScratch {
  static constexpr int kNothing = 0, kWeigh = 1, kGather = 2;
  // Places are those of token_order.cuh, bins those of radix_select.cuh.
  struct alignas(16) State {
    uint64_t highest, raw_highest;
    uint64_t first_bad;
    uint32_t arrived, listed;
    // From one launch to the next.
    uint64_t total;   // of all weights; 0: only counts are known
    uint64_t before;  // of the weights before those that are listed
    uint64_t gap;     // of those between high_end and low_bin
    int next;
    // What is listed: high_begin to high_end, from the highest down, and low_bin.
    int high_begin, high_end, low_bin;
    int unused[2];
  };
  State state;
  uint64_t histogram[kSampleHistogramBins];
  uint64_t places[kMaxListedTokens];
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
  float* adjusted;              // [workspace rows, vocab]
  uint32_t* seen;               // [workspace rows, vocab]: 0 before and after
  int64_t workspace_stride;
  SampleResult* results;         // one a request
  SampleScratch* scratch;        // one a request; not used by one block a request
  int most_sorted, most_listed;  // set by LaunchSample
};

// The distribution of the work; results do not depend on it.
struct SampleShape {
  int blocks = 1;    // a request
  int threads = 0;   // a block: a power of two from 32 to 512; 0: as many as are good for it
  int launches = 3;  // of several blocks: the most that SampleLaunches says of any of the requests
  // Longest list of tokens that is sorted, that is made.
  int most_sorted = kMaxSortedTokens, most_listed = kMaxListedTokens;
};
// For a device of so many multiprocessors: those of them that a launch leaves idle help out.
SampleShape SampleShapeFor(int requests, int vocab, int multiprocessors);
// That a request takes if several blocks share it.
int SampleLaunches(float temperature, int top_k, int vocab);

void LaunchSample(const SampleLaunch& launch, int requests, const SampleShape& shape,
                  Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_SAMPLING_H_

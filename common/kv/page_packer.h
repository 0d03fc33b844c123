// Which pages the chunks of a block's layers lie in. Private to this library.
#ifndef BATON_COMMON_KV_PAGE_PACKER_H_
#define BATON_COMMON_KV_PAGE_PACKER_H_

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/kv/kv_layout.h"

namespace baton::kv {

// The most layers a page: the more, the fewer tables; the padding of both kinds together is at most
// this share of the layers.
inline constexpr double kMostPadding = 0.05;

// Places the chunks of one kind of layers in pages, layer by layer.
class PagePacker {
 public:
  explicit PagePacker(int layers_per_page) : a_page_(layers_per_page), used_(layers_per_page) {}

  // The first of a layer's chunks; `table` counts from 0.
  KvPages::Place Add(int chunks) {
    if (used_ + chunks > a_page_) {
      ++pages_;
      used_ = 0;
    }
    const KvPages::Place place = {pages_ - 1, used_};
    used_ += chunks;
    return place;
  }
  int pages() const { return pages_; }

 private:
  const int a_page_;
  int used_;
  int pages_ = 0;
};

// full, windowed: the chunks of each layer of a kind.
inline int LayersPerPage(const std::vector<int>& full, const std::vector<int>& windowed,
                         bool recurrent) {
  const auto sum = [](const std::vector<int>& of) {
    return std::accumulate(of.begin(), of.end(), 0);
  };
  if (windowed.empty() || recurrent) return sum(full);
  const int most = std::max(*std::max_element(full.begin(), full.end()),
                            *std::max_element(windowed.begin(), windowed.end()));
  const int chunks = sum(full) + sum(windowed);
  for (int a_page = std::min(sum(full), sum(windowed)); a_page > most; --a_page) {
    int padding = -chunks;
    for (const std::vector<int>* kind : {&full, &windowed}) {
      PagePacker packer(a_page);
      for (const int layer : *kind) packer.Add(layer);
      padding += packer.pages() * a_page;
    }
    if (padding <= kMostPadding * chunks) return a_page;
  }
  return most;
}

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_PAGE_PACKER_H_

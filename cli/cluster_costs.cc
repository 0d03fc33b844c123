#include "cli/cluster_costs.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "baton/v1/admin.grpc.pb.h"
#include "common/base/file.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

constexpr size_t kMostCostsBytes = 1 << 16;
constexpr double kMostCost_us = 1e9;

// Adds a share of what one worker says.
void AddPrompt(const v1::WorkerCosts& worker, double share, ClusterCosts* costs) {
  costs->prefill.fixed_us += share * worker.prompt_step().fixed_us();
  costs->prefill.token_us += share * worker.prompt_step().token_us();
  costs->prefill.pair_us += share * worker.prompt_step().pair_us();
}
void AddDecode(const v1::WorkerCosts& worker, double share, ClusterCosts* costs) {
  costs->decode.fixed_us += share * worker.decode_step().fixed_us();
  costs->decode.sequence_us += share * worker.decode_step().sequence_us();
  costs->decode.context_token_us += share * worker.decode_step().context_token_us();
  costs->decode.expert_us += share * worker.decode_step().expert_us();
  costs->decode.experts = {worker.decode_step().experts(),
                           worker.decode_step().experts_per_token()};
}

int64_t KvTokens(const v1::WorkerCosts& worker) {
  return int64_t{worker.kv_blocks()} * worker.block_tokens();
}

absl::Status NotMeasured(const char* role, const char* what, const std::string& router,
                         int workers) {
  return absl::FailedPreconditionError(absl::StrCat(
      "of the ", workers, " ", role, " workers of ", router, ", none has measured its steps of ",
      what, ", expected one or more: send the cluster some requests"));
}

// Calls visit(object, field, low, high, value) for each number of the costs, whatever they are
// from, with the bounds of what can be simulated.
template <class Costs, class Visit>
void ForEachField(Costs& costs, Visit visit) {
  constexpr double kMostTokens = 1e12;
  visit("prefill", "fixed_us", 0, kMostCost_us, costs.prefill.fixed_us);
  visit("prefill", "token_us", 0, kMostCost_us, costs.prefill.token_us);
  visit("prefill", "pair_us", 0, kMostCost_us, costs.prefill.pair_us);
  visit("prefill", "max_num_batched_tokens", 16, 1 << 24, costs.prefill_step_tokens);
  visit("prefill", "max_num_seqs", 1, 1 << 16, costs.prefill_max_num_seqs);
  visit("prefill", "kv_tokens", 1, kMostTokens, costs.prefill_kv_tokens);
  visit("decode", "fixed_us", 0, kMostCost_us, costs.decode.fixed_us);
  visit("decode", "sequence_us", 0, kMostCost_us, costs.decode.sequence_us);
  visit("decode", "context_token_us", 0, kMostCost_us, costs.decode.context_token_us);
  visit("decode", "expert_us", 0, kMostCost_us, costs.decode.expert_us);
  visit("decode", "experts", 0, 1 << 16, costs.decode.experts.experts);
  visit("decode", "experts_per_token", 0, 1 << 16, costs.decode.experts.per_token);
  visit("decode", "max_num_seqs", 1, 1 << 16, costs.decode_max_num_seqs);
  visit("decode", "kv_tokens", 1, kMostTokens, costs.decode_kv_tokens);
  visit("kv", "bytes_per_token", 0, 1e9, costs.kv_bytes_per_token);
  visit("kv", "link_bytes_per_second", 0, 1e15, costs.link_bytes_per_second);
}

absl::Status WrongField(const std::string& from, const char* object, const char* field,
                        const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat(from, ": ", object, *field != 0 ? "." : "", field,
                                                 " is missing or wrong, expected ", expected));
}

// `from`: the file or the router that the costs are from.
absl::Status CheckCosts(const ClusterCosts& costs, const std::string& from) {
  absl::Status status;
  ForEachField(costs, [&](const char* object, const char* field, double low, double high,
                          const auto& value) {
    const auto number = static_cast<double>(value);
    if (!status.ok() || (number >= low && number <= high)) return;
    status = WrongField(from, object, field,
                        absl::StrFormat("a number from %g to %g, got %g", low, high, number));
  });
  if (!status.ok()) return status;
  const ExpertChoice& experts = costs.decode.experts;
  if (experts.per_token > experts.experts) {
    return WrongField(from, "decode", "experts_per_token",
                      absl::StrCat("at most the experts, which are ", experts.experts, ", got ",
                                   experts.per_token));
  }
  if (costs.prefill.fixed_us + costs.prefill.token_us <= 0 ||
      costs.decode.fixed_us + costs.decode.sequence_us <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(from, ": a step takes no time, expected costs above 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ClusterCosts> CostsOfLoads(const v1::GetLoadsResponse& loads,
                                          const std::string& router) {
  std::vector<const v1::WorkerCosts*> prefill, decode;
  int prefill_workers = 0, decode_workers = 0;
  bool reported = false, told = false;
  for (const v1::WorkerLoad& load : loads.workers()) {
    reported = reported || load.has_age_ms();
    told = told || load.has_costs();
    if (load.role() == v1::WORKER_ROLE_PREFILL) {
      ++prefill_workers;
      if (load.costs().has_prompt_step()) prefill.push_back(&load.costs());
    } else if (load.role() == v1::WORKER_ROLE_DECODE) {
      ++decode_workers;
      if (load.costs().has_decode_step()) decode.push_back(&load.costs());
    }
  }
  if (reported && !told) {
    return absl::FailedPreconditionError(
        absl::StrCat(router,
                     " does not tell what its workers' steps take, as its version knows no "
                     "costs: expected a router of this version or a later one"));
  }
  // Decode workers compute prompts, too; their costs are taken where no prefill worker has any.
  if (prefill.empty()) {
    for (const v1::WorkerCosts* worker : decode) {
      if (worker->has_prompt_step()) prefill.push_back(worker);
    }
  }
  if (prefill.empty()) {
    return prefill_workers > 0 ? NotMeasured("prefill", "prompts", router, prefill_workers)
                               : NotMeasured("decode", "prompts", router, decode_workers);
  }
  if (decode.empty()) return NotMeasured("decode", "answers", router, decode_workers);
  ClusterCosts costs;
  costs.source = absl::StrCat("measured by workers of ", router, ", ", prefill.size(),
                              " for prompts and ", decode.size(), " for answers");
  costs.prefill = {0, 0, 0};
  costs.decode = {0, 0, 0};
  for (const v1::WorkerCosts* worker : prefill) {
    AddPrompt(*worker, 1.0 / static_cast<double>(prefill.size()), &costs);
  }
  double seconds_per_byte = 0;
  int linked = 0;
  for (const v1::WorkerCosts* worker : decode) {
    AddDecode(*worker, 1.0 / static_cast<double>(decode.size()), &costs);
    if (worker->link_bytes_per_second() > 0) {
      seconds_per_byte += 1 / worker->link_bytes_per_second();
      ++linked;
    }
  }
  if (linked > 0) costs.link_bytes_per_second = linked / seconds_per_byte;
  // Sizes are those of the first worker of a role: a plan has equal workers.
  // Workers of earlier versions do not tell --max-num-batched-tokens.
  if (prefill[0]->max_num_batched_tokens() > 0) {
    costs.prefill_step_tokens = prefill[0]->max_num_batched_tokens();
  }
  costs.prefill_max_num_seqs = prefill[0]->max_num_seqs();
  costs.prefill_kv_tokens = KvTokens(*prefill[0]);
  costs.decode_max_num_seqs = decode[0]->max_num_seqs();
  costs.decode_kv_tokens = KvTokens(*decode[0]);
  costs.kv_bytes_per_token = decode[0]->kv_bytes_per_token();
  if (absl::Status checked = CheckCosts(costs, router); !checked.ok()) return checked;
  return costs;
}

absl::StatusOr<ClusterCosts> FetchCosts(const std::string& router, const RouterAccess& access,
                                        absl::Duration timeout) {
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                         RouterChannel(router, access));
  const auto stub = v1::AdminService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  v1::GetLoadsResponse loads;
  const grpc::Status status = stub->GetLoads(&context, v1::GetLoadsRequest(), &loads);
  if (!status.ok()) return FromGrpcStatus(status);
  return CostsOfLoads(loads, router);
}

std::string CostsJson(const ClusterCosts& costs) {
  const nlohmann::ordered_json json = {{"source", costs.source},
                                       {"prefill",
                                        {{"fixed_us", costs.prefill.fixed_us},
                                         {"token_us", costs.prefill.token_us},
                                         {"pair_us", costs.prefill.pair_us},
                                         {"max_num_batched_tokens", costs.prefill_step_tokens},
                                         {"max_num_seqs", costs.prefill_max_num_seqs},
                                         {"kv_tokens", costs.prefill_kv_tokens}}},
                                       {"decode",
                                        {{"fixed_us", costs.decode.fixed_us},
                                         {"sequence_us", costs.decode.sequence_us},
                                         {"context_token_us", costs.decode.context_token_us},
                                         {"expert_us", costs.decode.expert_us},
                                         {"experts", costs.decode.experts.experts},
                                         {"experts_per_token", costs.decode.experts.per_token},
                                         {"max_num_seqs", costs.decode_max_num_seqs},
                                         {"kv_tokens", costs.decode_kv_tokens}}},
                                       {"kv",
                                        {{"bytes_per_token", costs.kv_bytes_per_token},
                                         {"link_bytes_per_second", costs.link_bytes_per_second}}}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

absl::StatusOr<ClusterCosts> ReadCosts(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMostCostsBytes);
  if (!text.ok()) return text.status();
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no JSON object, expected what --save-costs writes"));
  }
  ClusterCosts costs;
  costs.source = path;
  if (const auto source = json.find("source"); source != json.end() && source->is_string()) {
    absl::StrAppend(&costs.source, ": ", source->get<std::string>().substr(0, 200));
  }
  absl::Status status;
  ForEachField(costs, [&](const char* object, const char* field, double low, double high,
                          auto& value) {
    if (!status.ok()) return;
    const auto outer = json.find(object);
    if (outer == json.end() || !outer->is_object()) {
      status = WrongField(path, object, "", "an object");
      return;
    }
    const auto found = outer->find(field);
    const double number = found != outer->end() && found->is_number() ? found->get<double>() : -1;
    if (!(number >= low && number <= high)) {
      status =
          WrongField(path, object, field, absl::StrFormat("a number from %g to %g", low, high));
      return;
    }
    value = static_cast<std::remove_reference_t<decltype(value)>>(number);
  });
  if (!status.ok()) return status;
  if (absl::Status checked = CheckCosts(costs, path); !checked.ok()) return checked;
  return costs;
}

absl::StatusOr<ClusterCosts> FloorCosts(const engine::ServingQuestion& question,
                                        double efficiency) {
  constexpr int kShort = 1024, kLong = 2048;
  engine::ServingQuestion ask = question;
  ask.batches = {1, std::max(2, question.engine.max_num_seqs)};
  ask.prompts = {kShort, kLong};
  const absl::StatusOr<engine::ServingPlan> plan = engine::PlanServing(ask);
  if (!plan.ok()) return plan.status();
  if (!plan->refusal.ok()) return plan->refusal;
  ClusterCosts costs;
  costs.source =
      absl::StrFormat("floors of %s on %s (%s rates) / efficiency %g", plan->costs.architecture,
                      plan->gpu.name, plan->gpu.rate_source, efficiency);
  const double us_per_byte = 1e6 / plan->gpu.bytes_per_second / efficiency;
  const double us_per_flop = 1e6 / plan->gpu.flops_per_second / efficiency;
  const engine::PrefillFloor &a = plan->prefill[0], &b = plan->prefill[1];
  // flops(n) = token * n + pair * n * n / 2
  const double a_token = a.flops / kShort, b_token = b.flops / kLong;
  const double pair_flops = std::max(0.0, (b_token - a_token) / ((kLong - kShort) / 2.0));
  costs.prefill.fixed_us = (a.memory_ms + a.host_ms) * 1e3 / efficiency;
  costs.prefill.token_us = (a_token - pair_flops * kShort / 2) * us_per_flop;
  costs.prefill.pair_us = pair_flops * us_per_flop;
  costs.prefill_step_tokens = question.engine.max_num_batched_tokens;
  costs.prefill_max_num_seqs = question.engine.max_num_seqs;
  // The simulation has no windows, so the pool counts as if all layers kept all tokens. States of
  // recurrent layers are not counted.
  const engine::MemoryPlan& memory = plan->memory;
  const int block_pages = memory.shape.recurrent ? memory.shape.full_pages : memory.shape.pages();
  costs.prefill_kv_tokens = memory.page_count / block_pages * memory.block_tokens;
  const engine::DecodeFloor &one = plan->decode[0], &many = plan->decode[1];
  const auto weights_us = [&](const engine::DecodeFloor& floor) {
    return floor.bytes.weights * us_per_byte + floor.host_ms * 1e3 / efficiency;
  };
  for (const model::LayerCosts& layer : plan->costs.layers) {
    if (layer.experts > 0) costs.decode.experts = layer.choice();
  }
  if (costs.decode.experts.experts > 0) {
    const double more =
        costs.decode.experts.Distinct(many.batch) - costs.decode.experts.Distinct(one.batch);
    costs.decode.expert_us =
        std::max(0.0, (weights_us(many) - weights_us(one)) / std::max(more, 1e-9));
  }
  costs.decode.fixed_us =
      weights_us(one) - costs.decode.expert_us * costs.decode.experts.Distinct(one.batch);
  costs.decode.sequence_us = one.flops * us_per_flop;
  costs.decode.context_token_us = one.bytes.kv / plan->context * us_per_byte;
  costs.decode_max_num_seqs = question.engine.max_num_seqs;
  costs.decode_kv_tokens = costs.prefill_kv_tokens;
  costs.kv_bytes_per_token = static_cast<double>(plan->memory.token_bytes);
  return costs;
}

}  // namespace baton::cli

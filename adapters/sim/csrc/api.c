#include "sim.h"

static va_status there_is(int32_t device) {
  if (sim_in_bad_fork())
    return sim_fail(VA_ERROR_FORKED, "the device was opened before this process was forked");
  if (device < 0 || device >= SIM_DEVICES)
    return sim_fail(VA_ERROR_NO_DEVICE, "there is no device %d: there are %d", device, SIM_DEVICES);
  return VA_OK;
}

static va_status device_count(int32_t *count) {
  va_status status = there_is(0);
  if (status) return status;
  if (!count) return sim_fail(VA_ERROR_INVALID, "count is NULL");
  *count = SIM_DEVICES;
  return VA_OK;
}

static va_status device_info(int32_t device, va_device_info *info) {
  va_status status = there_is(device);
  if (status) return status;
  if (!info || info->size < sizeof *info)
    return sim_fail(VA_ERROR_INVALID, "va_device_info.size is too small");
  *info = (va_device_info){.size = sizeof *info,
                           .capability_major = -1,
                           .capability_minor = -1,
                           .subgroup_size = SIM_SUBGROUP,
                           .units = SIM_UNITS,
                           .alignment = SIM_ALIGNMENT,
                           .total_memory = SIM_HEAP,
                           .name = "Simulated accelerator",
                           .arch = "sim48"};
  return VA_OK;
}

static va_status nothing(void *arguments) {
  (void)arguments;
  return VA_OK;
}

static va_status fence(int32_t device, va_stream stream, va_fence_scope scope) {
  if (scope < VA_FENCE_SUBGROUP || scope > VA_FENCE_SYSTEM)
    return sim_fail(VA_ERROR_INVALID, "there is no fence scope %d", scope);
  /* The worker runs one group after the other, so that every write is seen by what runs later:
     a fence has its place in the order of its stream, and nothing to do there. */
  return sim_enqueue(device, stream, nothing, "", 0);
}

static va_status operator_dtypes(int32_t device, va_operator op, uint64_t *dtypes) {
  va_status status = there_is(device);
  if (status) return status;
  if (op < 0 || op >= VA_OP_COUNT || !dtypes)
    return sim_fail(VA_ERROR_INVALID, "there is no operator %d, or dtypes is NULL", op);
  *dtypes = SIM_DTYPES;
  return VA_OK;
}

static const va_api api = {
    .size = sizeof(va_api),
    .abi_major = VA_ABI_MAJOR,
    .abi_minor = VA_ABI_MINOR,
    .vendor = "vllm-adapter",
    .version = "0.1.0",
    .last_error = sim_last_error,
    .device_count = device_count,
    .device_info = device_info,
    .open = sim_open,
    .in_bad_fork = sim_in_bad_fork,
    .allocate = sim_allocate,
    .allocate_pinned = sim_allocate_pinned,
    .free_pinned = sim_free_pinned,
    .memory_info = sim_memory_info,
    .memory_stats = sim_memory_stats,
    .copy_to_device = sim_copy_to_device,
    .copy_to_host = sim_copy_to_host,
    .copy_on_device = sim_copy_on_device,
    .stream_create = sim_stream_create,
    .stream_destroy = sim_stream_destroy,
    .stream_synchronize = sim_stream_synchronize,
    .stream_wait_event = sim_stream_wait_event,
    .event_create = sim_event_create,
    .event_destroy = sim_event_destroy,
    .event_record = sim_event_record,
    .event_query = sim_event_query,
    .event_synchronize = sim_event_synchronize,
    .event_elapsed = sim_event_elapsed,
    .fence = fence,
    .operator_dtypes = operator_dtypes,
    .linear = sim_linear,
    .rms_norm = sim_rms_norm,
    .fused_add_rms_norm = sim_fused_add_rms_norm,
    .silu_and_mul = sim_silu_and_mul,
    .layer_norm = sim_layer_norm,
    .gelu = sim_gelu,
    .gelu_and_mul = sim_gelu_and_mul,
    .embedding = sim_embedding,
    .rotary_embedding = sim_rotary_embedding,
    .reshape_and_cache = sim_reshape_and_cache,
    .paged_attention = sim_paged_attention,
    .attention = sim_attention,
    .unary = sim_unary,
    .binary = sim_binary,
    .reduce = sim_reduce,
    .where = sim_where,
    .index = sim_index,
    .gather = sim_gather,
    .matmul = sim_matmul,
    .fill = sim_fill,
};

const va_api *va_get_api(uint32_t major, uint32_t minor) {
  return major == VA_ABI_MAJOR && minor <= VA_ABI_MINOR ? &api : NULL;
}
